"""A picture [rows, columns, 3] to the order in which a tower reads it, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.pixels.recipe import Recipe

Grid = tuple[int, int, int]  # temporal, height, width in patches


def arranged(values: NDArray[Any], recipe: Recipe) -> NDArray[Any]:
    """[rows, columns, 3] -> the family's layout.

    qwen, glm: [P, 3 * temporal * patch * patch], the merge x merge patches of a token adjacent; kimi: [P, 3, patch, patch] in reading
    order; the others: [3, rows, columns].
    """
    if not recipe.patched:
        return np.ascontiguousarray(values.transpose(2, 0, 1))
    patch, merge = recipe.patch, recipe.merge if recipe.family != "kimi" else 1
    rows, columns = values.shape[0] // (patch * merge), values.shape[1] // (patch * merge)
    blocks = values.reshape(rows, merge, patch, columns, merge, patch, 3)
    blocks = blocks.transpose(0, 3, 1, 4, 6, 2, 5)  # rows, columns, merge, merge, channel, patch, patch
    if recipe.family == "kimi":
        return blocks.reshape(rows * columns, 3, patch, patch)
    blocks = np.broadcast_to(blocks[:, :, :, :, :, None], (*blocks.shape[:5], recipe.temporal_patch, patch, patch))  # a still fills all
    return blocks.reshape(rows * columns * merge * merge, -1)


def picture(tensor: NDArray[Any], grid: Grid, recipe: Recipe) -> NDArray[Any]:
    """The inverse of `arranged`: [rows, columns, 3]. ValueError when the tensor does not have the shape of the grid."""
    _, height, width = grid
    if not recipe.patched:
        if tensor.ndim != 3 or tensor.shape[0] != 3:
            raise ValueError(f"a tensor of shape {tensor.shape} is no picture [3, rows, columns]")
        return tensor.transpose(1, 2, 0)
    patch, merge = recipe.patch, recipe.merge if recipe.family != "kimi" else 1
    wide = tensor.reshape(tensor.shape[0], 3, -1, patch, patch)[:, :, 0]  # the first temporal position
    if wide.shape[0] != height * width or height % merge or width % merge:
        raise ValueError(f"{wide.shape[0]} patches do not fill a grid of {height} x {width}")
    blocks = wide.reshape(height // merge, width // merge, merge, merge, 3, patch, patch).transpose(0, 2, 5, 1, 3, 6, 4)
    return blocks.reshape(height * patch, width * patch, 3)
