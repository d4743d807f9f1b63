"""Pictures to what the vision tower reads: the door of the room `pixels/`, for servers and for whoever checks them."""

from __future__ import annotations

from runtime.pixels.flat import flatten
from runtime.pixels.geometry import MAX_ASPECT, BadImage
from runtime.pixels.geometry import resized_size as target_size
from runtime.pixels.patches import Grid
from runtime.pixels.positions import mrope_positions
from runtime.pixels.recipe import Recipe as ImageSettings
from runtime.pixels.stages import prepare as preprocess

__all__ = ["MAX_ASPECT", "BadImage", "Grid", "ImageSettings", "flatten", "mrope_positions", "preprocess", "target_size"]
