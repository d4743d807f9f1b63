"""`workbench operators`: which operators a model dispatches, and what a device makes of them."""
