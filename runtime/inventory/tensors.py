"""A tensor of a checkpoint, or as many as there are experts, without a weight byte."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from probes.checkpoint import ITEM_BYTES

Kind = Literal[
    "embed", "head", "norm", "residual", "attention", "dense", "router", "latent", "shared", "routed", "vision", "projector", "mtp", "other"
]
"""What a tensor is for. `latent` are the projections around experts of a narrower width, `residual` the attention-residual mix."""

Split = Literal["whole", "tp", "kv", "expert"]
"""How ranks share it: every rank has all of it; tensor-parallel; tensor-parallel, but not finer than the KV heads; by expert."""

Role = Literal["matrix", "vector", "scale"]
"""A matrix can be stored in fewer bits; a vector (norm, bias, convolution) is not; a scale belongs to a packed matrix."""


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """`copies` tensors of one name, shape and dtype; with more than one copy the name has {expert} to fill in."""

    name: str
    shape: tuple[int, ...]  # as stored
    dtype: str  # as a safetensors header spells it
    kind: Kind
    split: Split = "whole"
    role: Role = "matrix"
    layer: int | None = None
    values: int = 0  # parameters in one copy: packed values count one each, scales none
    copies: int = 1
    experts: int = 0  # experts that all copies together hold

    @property
    def nbytes(self) -> int:
        """Stored bytes of all copies."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype] * self.copies

    @property
    def parameters(self) -> int:
        return self.values * self.copies

    def names(self) -> Iterator[str]:
        """Every tensor's name."""
        if "{expert}" not in self.name:
            yield self.name
            return
        for expert in range(self.copies):
            yield self.name.replace("{expert}", str(expert))
