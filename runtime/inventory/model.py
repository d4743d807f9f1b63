"""A whole checkpoint as the planner and the verifier see it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from runtime.inventory.tensors import Kind, TensorGroup

CacheKind = Literal["gqa", "mla", "recurrent"]
INACTIVE: frozenset[Kind] = frozenset({"embed", "vision", "projector", "mtp"})


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer keeps of a sequence.

    `values` per token, in the KV dtype, over `heads` that tensor parallelism can share (1: every rank keeps all of it, as of MLA's
    latent). `state` and `conv` per sequence whatever its length: state in float32, convolution tails in the activation dtype.
    `window`: a sliding window keeps no more than so many tokens.
    """

    kind: CacheKind
    values: int = 0
    heads: int = 1
    state: int = 0
    conv: int = 0
    window: int | None = None


@dataclass(frozen=True, slots=True)
class MixtureFacts:
    """The experts of a model. `width` is that of the rows that travel to them; `top_k` None where only headers were there to read."""

    experts: int
    top_k: int | None
    width: int
    inner: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every tensor, and the numbers that a budget needs beside them."""

    architecture: str
    family: str
    hidden: int
    vocab: int
    layers: int
    heads: int
    max_positions: int | None
    groups: tuple[TensorGroup, ...]
    caches: tuple[LayerCache, ...]  # one a layer
    mixture: MixtureFacts | None
    residual_blocks: int = 0  # frozen rows a token carries besides its stream (attention residuals), at most
    tied: bool = False
    source: Literal["config", "headers", "config and headers"] = "config"
    assumptions: tuple[str, ...] = field(default=())

    @property
    def tensors(self) -> int:
        return sum(group.copies for group in self.groups)

    @property
    def parameters(self) -> int:
        """Every weight, bias and router selection bias once, packed values by value, scales and draft layers not at all.

        That is how published totals are counted: DeepSeek-V3 has 671,026,419,200 without its draft layer.
        """
        return sum(group.parameters for group in self.groups if group.kind != "mtp")

    @property
    def draft_parameters(self) -> int:
        """Parameters of the multi-token-prediction layers."""
        return sum(group.parameters for group in self.groups if group.kind == "mtp")

    @property
    def stored_bytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    @property
    def active_parameters(self) -> int | None:
        """Parameters that a text token multiplies with: not the embedding table, vision, draft layers, nor the experts not chosen."""
        if self.mixture is None:
            return sum(g.parameters for g in self.groups if g.kind not in INACTIVE)
        if self.mixture.top_k is None:
            return None
        always = sum(g.parameters for g in self.groups if g.kind not in INACTIVE and g.kind != "routed")
        if self.tied:  # the head is the embedding table
            always += sum(g.parameters for g in self.groups if g.kind == "embed")
        return always + self.routed_parameters * self.mixture.top_k // self.mixture.experts

    @property
    def routed_parameters(self) -> int:
        return sum(g.parameters for g in self.groups if g.kind == "routed")

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(sorted({g.layer for g in self.groups if g.kind == "routed" and g.layer is not None}))

    def kinds(self) -> dict[Kind, int]:
        """Stored bytes of each kind."""
        sums: Counter[Kind] = Counter()
        for group in self.groups:
            sums[group.kind] += group.nbytes
        return dict(sums)
