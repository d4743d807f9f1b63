"""Two descriptions of one checkpoint, written apart, hold each other: what the planner says is stored is what a rank asks for.

The inventory's totals are pinned to published ones (inventory/test_published.py), so that both cannot be wrong in the same way unseen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes.checkpoint import ITEM_BYTES, Checkpoint, TensorEntry
from runtime.arch import read_arch
from runtime.inventory.families import inventory_of
from runtime.placement import Placement
from runtime.plan import plan_rank


@pytest.mark.parametrize("name", ["kimi_k3", "deepseek_v3", "kimi_k25"])
def test_every_stored_tensor_is_asked_for_or_named_as_skipped(name: str, published: Callable[[str], dict[str, Any]]) -> None:
    """One rank for each expert: it reads one expert a layer and everything else. A missing, an unknown or a misshapen tensor raises."""
    config = published(name)
    arch, inventory = read_arch(config), inventory_of(config)
    tensors: dict[str, TensorEntry] = {}
    offset = 0
    for group in inventory.groups:
        size = math.prod(group.shape) * ITEM_BYTES[group.dtype]
        for tensor in group.names():
            tensors[tensor] = TensorEntry("all", group.dtype, group.shape, offset, size)
            offset += size
    ranks = arch.moe.experts
    found = plan_rank(Checkpoint(Path(), {}, tensors), arch, Placement.contiguous(len(arch.moe_layers), ranks, ranks), 0)
    covered = Counter[str]()
    for part in found.parts:
        covered[part.target] += part.values
    assert covered == {target: math.prod(shape) for target, shape in found.targets.items()}
    read = {part.tensor for part in found.parts} | {part.scales.tensor for part in found.parts if part.scales is not None}
    skipped = ("vision_tower.", "mm_projector.", *(f"model.layers.{i}." for i in range(len(arch.layers), len(arch.layers) + 4)))
    assert [one for one in tensors if one not in read and ".experts." not in one and not one.startswith(skipped)] == []
