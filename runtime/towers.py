"""Which tower encodes a model's pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from runtime.arch import AnyVision, MoonVitSpec
from runtime.moonvit import MoonVitTower
from runtime.vision import Grid, VisionTower


class Tower(Protocol):
    def encode(self, patches: Tensor, grids: Sequence[Grid]) -> tuple[Tensor, list[Tensor]]:
        """patches [P, patch values], grids (t, h, w) in patches -> (embeddings [M, H], side outputs [M, H] each)."""


def tower_of(spec: AnyVision, weights: dict[str, Tensor]) -> Tower:
    """`weights`: by the names of `runtime.vision_plan.vision_shapes`."""
    return MoonVitTower(spec, weights) if isinstance(spec, MoonVitSpec) else VisionTower(spec, weights)
