"""image-drift: a picture is understood badly because it was prepared otherwise than the model was trained with."""
