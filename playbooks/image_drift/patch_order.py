"""image.patch-order: the right patches in a wrong order, or the numbers of a patch in a wrong order.

How it is told apart: the multiset of patches is the same and the tensor is not; the order that fits is named. A uniform picture has
equal patches and cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Floats, Probe
from playbooks.image_drift.way import Alternative, same
from runtime.pixels.patches import picture


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    recipe = probe.recipe
    if not recipe.patched:
        return []
    tensor, (_, height, width) = probe.reference
    ids = np.arange(height * width).reshape(height, width)
    merge = recipe.merge
    down, across = height // merge, width // merge
    blocks = ids.reshape(down, merge, across, merge)
    orders = {
        "put in reading order instead of merge blocks": ids.ravel(),
        "put in order column by column": ids.T.ravel(),
        "put in merge blocks": blocks.transpose(0, 2, 1, 3).ravel(),
        "put with rows and columns exchanged inside the merge block": blocks.transpose(0, 2, 3, 1).ravel(),
        "put with the merge blocks column by column": blocks.transpose(2, 0, 1, 3).ravel(),
        "put with blocks and their inside column by column": blocks.transpose(2, 0, 3, 1).ravel(),
        "put in reverse order": blocks.transpose(0, 2, 1, 3).ravel()[::-1],
    }
    proper = ids.ravel() if recipe.family == "kimi" else blocks.transpose(0, 2, 1, 3).ravel()
    place = np.argsort(proper)  # raster id -> row of the reference tensor
    found = [
        same(probe, f"cut into patches that were {words}", partial(_plane, probe, tensor[place[order]]))
        for words, order in orders.items()
        if (order != proper).any()
    ]
    return found + _inside(probe, tensor)


def _inside(probe: Probe, tensor: NDArray[Any]) -> list[Alternative]:
    """Orders within a patch; the axes are channel, temporal, row, column."""
    patch = probe.recipe.patch
    whole = tensor.reshape(tensor.shape[0], 3, -1, patch, patch)
    orders = {
        "with the channels last inside a patch": (0, 2, 3, 4, 1),
        "with the temporal axis before the channels": (0, 2, 1, 3, 4),
        "with rows and columns exchanged inside a patch": (0, 1, 2, 4, 3),
    }
    return [
        same(probe, f"cut into patches {words}", partial(_plane, probe, whole.transpose(axes).reshape(tensor.shape)))
        for words, axes in orders.items()
    ]


def _plane(probe: Probe, tensor: NDArray[Any]) -> Floats:
    return probe.levels(picture(tensor, probe.reference[1], probe.recipe))


CAUSE = Cause(
    "image.patch-order", "Patches in a wrong order", "patch", alternatives,
    "Take over the reference's reshape and transpose, and test it with a picture that is different at its four corners.", __doc__ or "",
)  # fmt: skip
