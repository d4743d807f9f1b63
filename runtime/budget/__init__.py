"""What a model costs on a layout: memory a rank, traffic, time floors, the layouts of a cluster. Torch-free, from an inventory alone."""
