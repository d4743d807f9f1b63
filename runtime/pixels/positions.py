"""Where the tokens of pictures stand: placeholders of a prompt, and the positions t, h, w of every token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from runtime.pixels.patches import Grid
from runtime.pixels.recipe import Recipe


def image_tokens(grid: Grid, recipe: Recipe) -> int:
    """Tokens of one picture: a frame's merge x merge patches share one. A pixtral row ends in a separator that is not counted here."""
    t, h, w = grid
    return t * (h // recipe.merge) * (w // recipe.merge)


def placeholders(grid: Grid, recipe: Recipe, token: int, row_break: int | None = None, end: int | None = None) -> list[int]:
    """The ids that take the place of one picture.

    `row_break` and `end`: pixtral ends its rows with [IMG_BREAK], the last with [IMG_END]; other families have neither. transformers 5.24,
    PixtralProcessor and Qwen2VLProcessor.
    """
    if row_break is None or end is None:
        return [token] * image_tokens(grid, recipe)
    rows, columns = grid[1] // recipe.merge, grid[2] // recipe.merge
    ids = ([token] * columns + [row_break]) * rows
    return [*ids[:-1], end]


def mrope_positions(tokens: NDArray[np.int64], grids: Sequence[Grid], image_token: int, merge: int) -> NDArray[np.int64]:
    """Positions t, h, w of a prompt, [3, T] (transformers' Qwen3VLMoeModel.get_rope_index).

    Text counts on; an image's tokens share its start in t and count its rows and columns; what follows goes on after its longer side.
    ValueError when the runs of `image_token` do not match `grids`.
    """
    positions = np.empty((3, len(tokens)), dtype=np.int64)
    is_image = np.concatenate(([False], tokens == image_token, [False]))
    begins, ends = np.flatnonzero(np.diff(is_image.astype(np.int8)) == 1), np.flatnonzero(np.diff(is_image.astype(np.int8)) == -1)
    if len(begins) != len(grids):
        raise ValueError(f"{len(grids)} images for {len(begins)} runs of image tokens")
    at = position = 0
    for begin, end, (t, h, w) in zip(begins.tolist(), ends.tolist(), grids, strict=True):
        rows, columns = h // merge, w // merge
        if end - begin != t * rows * columns:
            raise ValueError(f"{end - begin} image tokens for an image of {t} x {rows} x {columns}")
        positions[:, at:begin] = np.arange(position, position + begin - at)
        position += begin - at
        positions[:, begin:end] = np.indices((t, rows, columns)).reshape(3, -1) + position
        position += max(rows, columns)
        at = end
    positions[:, at:] = np.arange(position, position + len(tokens) - at)
    return positions
