"""image.resize-geometry: resized to another size, or to the right one in a wrong way: twice, padded, cropped, sides exchanged.

How it is told apart: the grid is the one that another rule gives for this picture; or, with the right grid, the other way leaves nothing
of the drift. Measured: 600 x 900 becomes 588 x 896 at factor 28, 608 x 896 at 32, and 576 x 896 if both run one after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Floats, Probe
from playbooks.image_drift.way import Alternative, Resize, stretch, way
from runtime.images import ImageSettings, flatten, target_size

Round = Callable[[float], int]


def _rounded(how: Round, factor: int) -> Callable[[int, int, ImageSettings], tuple[int, int]]:
    """To multiples of `factor`, without a budget."""
    return lambda height, width, recipe: (max(factor, how(height / factor) * factor), max(factor, how(width / factor) * factor))


def _via(probe: Probe, factor: int) -> Callable[[Image.Image], Image.Image]:
    """A first resize for another factor."""
    recipe = probe.recipe

    def flat(image: Image.Image) -> Image.Image:
        image = flatten(image)
        rows, columns = target_size(image.height, image.width, replace(recipe, patch=factor, merge=1))
        return image.resize((columns, rows), Image.Resampling(recipe.resample))

    return flat


def _padded(resample: int, colour: int, centred: bool) -> Resize:
    def resize(flat: Image.Image, rows: int, columns: int) -> Floats:
        scale = min(rows / flat.height, columns / flat.width)
        height, width = max(1, min(rows, round(flat.height * scale))), max(1, min(columns, round(flat.width * scale)))
        out = np.full((rows, columns, 3), colour, np.float32)
        top, left = ((rows - height) // 2, (columns - width) // 2) if centred else (0, 0)
        out[top : top + height, left : left + width] = np.asarray(flat.resize((width, height), Image.Resampling(resample)))
        return out

    return resize


def _cropped(resample: int) -> Resize:
    def resize(flat: Image.Image, rows: int, columns: int) -> Floats:
        scale = max(rows / flat.height, columns / flat.width)
        height, width = max(rows, round(flat.height * scale)), max(columns, round(flat.width * scale))
        whole = np.asarray(flat.resize((width, height), Image.Resampling(resample)), np.float32)
        top, left = (height - rows) // 2, (width - columns) // 2
        return whole[top : top + rows, left : left + columns]

    return resize


def _exchanged(resample: int) -> Resize:
    """To width x height first, then corrected."""

    def resize(flat: Image.Image, rows: int, columns: int) -> Floats:
        wrong = flat.resize((rows, columns), Image.Resampling(resample))
        return np.asarray(wrong.resize((columns, rows), Image.Resampling(resample)), np.float32)

    return resize


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    recipe = probe.recipe
    found: list[Alternative] = []
    kept = recipe.resample
    for factor in sorted({14, 16, 28, 32, 56, 64, recipe.patch} - {recipe.factor}):
        if recipe.patched:
            found += way(probe, f"resized twice: to multiples of {factor} before the model's own {recipe.factor}", flat=_via(probe, factor),
                         size=_after(factor))  # fmt: skip
            found += way(probe, f"resized to multiples of {factor} instead of {recipe.factor}", size=_other_factor(factor))
    for side in (224, 336, 448, 512, 1024):
        found += way(probe, f"resized to {side} x {side} before the model's own size",
                     flat=_square(side, kept))  # fmt: skip
        found += way(probe, f"resized to a square of {side} pixels", size=_squared(side))
    for words, how in (("down", math.floor), ("up", math.ceil)):
        found += way(probe, f"resized with its sides rounded {words} to multiples of {recipe.factor}", size=_rounded(how, recipe.factor))
    for colour, named in ((0, "black"), (255, "white"), (127, "grey"), (128, "grey")):
        for centred in (False, True):
            where = "on all sides" if centred else "at the right and the bottom"
            found += way(probe, f"padded with {named} {where} instead of stretched", resize=_padded(kept, colour, centred))
    found += way(probe, "cropped to its middle instead of stretched", resize=_cropped(kept))
    found += way(probe, "resized with width and height exchanged, and corrected afterwards", resize=_exchanged(kept))
    if recipe.crop:
        found += way(probe, "stretched to a square instead of cropped", size=lambda h, w, r: (r.crop[0], r.crop[1]))
    if recipe.family == "kimi":
        found += way(probe, "stretched to whole tokens instead of padded", size=_rounded(math.ceil, recipe.factor), resize=stretch(kept))
    return found


def _square(side: int, resample: int) -> Callable[[Image.Image], Image.Image]:
    return lambda image: flatten(image).resize((side, side), Image.Resampling(resample))


def _squared(side: int) -> Callable[[int, int, ImageSettings], tuple[int, int]]:
    return lambda height, width, recipe: (side // recipe.factor * recipe.factor, side // recipe.factor * recipe.factor)


def _after(factor: int) -> Callable[[int, int, ImageSettings], tuple[int, int]]:
    def size(height: int, width: int, recipe: ImageSettings) -> tuple[int, int]:
        rows, columns = target_size(height, width, replace(recipe, patch=factor, merge=1))
        return target_size(rows, columns, recipe)

    return size


def _other_factor(factor: int) -> Callable[[int, int, ImageSettings], tuple[int, int]]:
    return lambda height, width, recipe: target_size(height, width, replace(recipe, patch=factor, merge=1))


CAUSE = Cause(
    "image.resize-geometry", "Resized to another size, or in another way", "resize", alternatives,
    "Resize once, to the model's own multiple, with its rounding; stretch or pad as it was trained.", __doc__ or "",
)  # fmt: skip
