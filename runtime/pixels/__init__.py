"""A picture's way from a file to the tensor that a vision tower reads, family by family. numpy and PIL only, no torch."""
