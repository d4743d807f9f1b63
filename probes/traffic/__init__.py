"""What is asked of a model: the picture world, the questions and their right answers."""
