"""The stages of a picture, one after another, each with a tap: orient, flatten, resize, crop or pad, rescale, normalise, patch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from runtime.pixels.flat import flatten, transparent, upright
from runtime.pixels.geometry import BadImage, final_size, resized_size
from runtime.pixels.patches import Grid, arranged
from runtime.pixels.recipe import Recipe

Tap = Callable[[str, NDArray[Any]], None]
"""Is told the stage ("image.oriented", ... of probes.points.TAPS) and its array; it must not change it."""


def prepare(image: Image.Image, recipe: Recipe, tap: Tap | None = None) -> tuple[NDArray[np.float32], Grid]:
    """A picture -> (float32 in the family's layout, see `patches.arranged`; its grid in patches). BadImage when unusable."""
    turned = upright(image)
    _tell(tap, "image.oriented", turned)
    if recipe.opaque and transparent(turned):
        raise BadImage("a transparent picture, which this model wants on a chessboard", "lay it on a colour before sending it")
    flat = flatten(turned)
    _tell(tap, "image.flat", flat)
    pixels = fitted(resized(flat, recipe), recipe)
    _tell(tap, "image.resized", pixels)
    if tap is not None:
        tap("image.rescaled", pixels * np.float32(recipe.scale if recipe.rescale else 1.0))
    values = lookup(recipe)[np.arange(3), pixels]  # [rows, columns, 3] float32
    _tell(tap, "image.normalised", values)
    tensor = arranged(values, recipe)
    _tell(tap, "image.pixels", tensor)
    return tensor, (1, values.shape[0] // recipe.patch, values.shape[1] // recipe.patch)


def resized(flat: Image.Image, recipe: Recipe) -> NDArray[np.uint8]:
    """[rows, columns, 3], stretched with the recipe's filter, which in PIL always widens with the reduction (antialias).

    Always to the new width first and then to the new height, as torch does: bytes are rounded and clipped in between, so that the order
    shows. Left to itself Pillow from 13 on begins with the height where it shrinks more (python-pillow pull request 9549).
    """
    rows, columns = resized_size(flat.height, flat.width, recipe)
    for size in ((columns, flat.height), (columns, rows)):
        if flat.size != size:
            flat = flat.resize(size, Image.Resampling(recipe.resample))
    return np.asarray(flat)


def fitted(pixels: NDArray[np.uint8], recipe: Recipe) -> NDArray[np.uint8]:
    """Cropped to the middle (clip) or padded with zeros at the right and the bottom (kimi)."""
    height, width = pixels.shape[:2]
    if recipe.crop:
        return _cropped(pixels, recipe.crop[0], recipe.crop[1])
    if recipe.family == "kimi":
        rows, columns = -(-height // recipe.factor) * recipe.factor, -(-width // recipe.factor) * recipe.factor
        return np.pad(pixels, ((0, rows - height), (0, columns - width), (0, 0)))
    return pixels


def lookup(recipe: Recipe) -> NDArray[np.float32]:
    """[3, 256]: the value of every byte in every channel, so that no picture-sized intermediate is needed."""
    values = np.arange(256, dtype=np.float64) * (recipe.scale if recipe.rescale else 1.0)
    table = np.tile(values.astype(np.float32), (3, 1))
    if recipe.normalise:
        table = (table - np.asarray(recipe.mean, np.float32)[:, None]) / np.asarray(recipe.std, np.float32)[:, None]
    return table.astype(np.float32)


def tokens_of(height: int, width: int, recipe: Recipe) -> int:
    """Tokens that stand for a picture of this size (before padding by a template's separators)."""
    rows, columns = final_size(height, width, recipe)
    return (rows // recipe.factor) * (columns // recipe.factor)


def _cropped(pixels: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    """The middle; where the picture is smaller, zeros around it (transformers' image_transforms.center_crop)."""
    height, width = pixels.shape[:2]
    above, left = max(0, -(-(rows - height) // 2)), max(0, -(-(columns - width) // 2))
    if above or left or rows > height or columns > width:
        below, right = max(0, rows - height - above), max(0, columns - width - left)
        pixels = np.pad(pixels, ((above, below), (left, right), (0, 0)))
    top, start = (height - rows) // 2 + above, (width - columns) // 2 + left
    return pixels[top : top + rows, start : start + columns]


def _tell(tap: Tap | None, stage: str, value: Image.Image | NDArray[Any]) -> None:
    if tap is not None:
        tap(stage, np.asarray(value))
