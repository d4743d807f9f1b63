"""Pixels after resizing, family by family (transformers 5.24: smart_resize, get_resize_output_image_size, navit_resize)."""

from __future__ import annotations

import math

from runtime.pixels.recipe import Recipe
from traces.errors import UsageError

MAX_ASPECT = 200  # smart_resize of transformers refuses beyond it


class BadImage(UsageError, ValueError):
    """A picture that cannot be used."""


def resized_size(height: int, width: int, recipe: Recipe) -> tuple[int, int]:
    """(height, width) that the picture is stretched to, before it is cropped or padded. BadImage for a sliver."""
    if recipe.family == "qwen":
        return _budgeted(height, width, recipe, 1)
    if recipe.family == "glm":
        return _glm(height, width, recipe)
    if recipe.family == "pixtral":
        return _pixtral(height, width, recipe)
    if recipe.family == "kimi":
        return _navit(height, width, recipe)
    rows, columns = recipe.size
    if columns:
        return rows, columns
    short, long = min(height, width), max(height, width)
    other = int(rows * long / short)  # clip: the shorter side becomes `rows`
    return (other, rows) if width <= height else (rows, other)


def final_size(height: int, width: int, recipe: Recipe) -> tuple[int, int]:
    """(height, width) of the tensor: after cropping or padding."""
    rows, columns = resized_size(height, width, recipe)
    if recipe.crop:
        return recipe.crop[0], recipe.crop[1]
    if recipe.family == "kimi":
        return -(-rows // recipe.factor) * recipe.factor, -(-columns // recipe.factor) * recipe.factor
    return rows, columns


def _budgeted(height: int, width: int, recipe: Recipe, frames: int) -> tuple[int, int]:
    """Multiples of the factor, `frames` times the area within bounds, aspect kept as far as that allows (smart_resize)."""
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise BadImage(f"a picture of {width} x {height} pixels is too narrow", f"the sides may differ by a factor of {MAX_ASPECT} at most")
    factor = recipe.factor
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if frames * rows * columns > recipe.max_pixels:
        shrink = math.sqrt((frames * height * width) / recipe.max_pixels)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif frames * rows * columns < recipe.min_pixels:
        grow = math.sqrt(recipe.min_pixels / (frames * height * width))
        rows, columns = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rows, columns


def _glm(height: int, width: int, recipe: Recipe) -> tuple[int, int]:
    """Small pictures are first enlarged to one token; the budget counts every temporal position."""
    if min(height, width) < recipe.factor:
        grow = max(recipe.factor / height, recipe.factor / width)
        height, width = int(height * grow), int(width * grow)
    return _budgeted(height, width, recipe, recipe.temporal_patch)


def _pixtral(height: int, width: int, recipe: Recipe) -> tuple[int, int]:
    """Shrunk into the largest size, never enlarged, then stretched to whole patches."""
    ratio = max(height / recipe.size[0], width / recipe.size[1])
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    return -(-height // recipe.patch) * recipe.patch, -(-width // recipe.patch) * recipe.patch


def _navit(height: int, width: int, recipe: Recipe) -> tuple[int, int]:
    """Shrunk into a budget of patches and a longest side, never enlarged; what is missing to whole tokens is padded later."""
    patches = max(1.0, height // recipe.patch) * max(1.0, width // recipe.patch)
    limit = recipe.size[0]
    scale = min(1.0, math.sqrt(recipe.max_patches / patches), limit / height, limit / width)
    return min(max(1, int(height * scale)), limit), min(max(1, int(width * scale)), limit)
