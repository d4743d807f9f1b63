"""Other ways to prepare a picture: the stages of `runtime/pixels`, with one of them exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from playbooks.image_drift.probe import Floats, Probe
from runtime.images import BadImage, Grid, ImageSettings, flatten, target_size
from runtime.pixels.flat import upright
from runtime.pixels.stages import fitted

Resize = Callable[[Image.Image, int, int], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Alternative:
    """What may have been done instead, in words that follow "the picture was"; `plane` makes [rows, columns, 3] in levels.

    `grid`: in patches, known before the plane is made. An alternative of another size is only compared with a tensor of that size.
    """

    words: str
    grid: Grid
    plane: Callable[[], Floats]


def stretch(resample: int) -> Resize:
    """PIL's own, which widens with the reduction."""
    return lambda flat, rows, columns: np.asarray(flat.resize((columns, rows), Image.Resampling(resample)))


def in_floats(resample: int) -> Resize:
    """The same on floats, clipped at the end alone: torch's interpolate with antialias."""

    def resize(flat: Image.Image, rows: int, columns: int) -> NDArray[Any]:
        planes = [plane.convert("F").resize((columns, rows), Image.Resampling(resample)) for plane in flat.split()]
        levels: Floats = np.clip(np.stack([np.asarray(plane) for plane in planes], -1), 0, 255)
        return levels

    return resize


def way(
    probe: Probe,
    words: str,
    *,
    image: Callable[[], Image.Image] | None = None,
    turn: Callable[[Image.Image], Image.Image] = upright,
    flat: Callable[[Image.Image], Image.Image] = flatten,
    size: Callable[[int, int, ImageSettings], tuple[int, int]] = target_size,
    resize: Resize | None = None,
) -> list[Alternative]:
    """The recipe with what is given exchanged; empty when it makes no whole patches of this picture."""
    recipe = probe.recipe
    make = image or (lambda: probe.image)
    turned = turn(make())
    try:
        rows, columns = size(turned.height, turned.width, recipe)
    except BadImage:
        return []
    if min(rows, columns) < 1:
        return []
    height, width = _fitted_size(rows, columns, recipe)
    if height % recipe.patch or width % recipe.patch:
        return []

    def plane() -> Floats:
        flattened = flat(turned)
        stretched = (resize or stretch(recipe.resample))(flattened, rows, columns)
        return fitted(stretched, recipe).astype(np.float32)

    return [Alternative(words, (1, height // recipe.patch, width // recipe.patch), plane)]


def same(probe: Probe, words: str, plane: Callable[[], Floats]) -> Alternative:
    """One that changes values, not sizes."""
    return Alternative(words, probe.reference[1], plane)


def _fitted_size(rows: int, columns: int, recipe: ImageSettings) -> tuple[int, int]:
    if recipe.crop:
        return recipe.crop[0], recipe.crop[1]
    if recipe.family == "kimi":
        return -(-rows // recipe.factor) * recipe.factor, -(-columns // recipe.factor) * recipe.factor
    return rows, columns
