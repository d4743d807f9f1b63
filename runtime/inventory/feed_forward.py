"""The tensors of a dense feed-forward and of a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runtime.inventory.builder import Builder
from runtime.inventory.tensors import Kind, Split

Names = tuple[str, str, str]  # gate, up, down
PLAIN: Names = ("gate_proj", "up_proj", "down_proj")
NUMBERED: Names = ("w1", "w3", "w2")


def add_dense(builder: Builder, at: str, width: int, hidden: int, layer: int, kind: Kind = "dense") -> None:
    """A gated feed-forward of inner width `width`."""
    gate, up, down = PLAIN
    # Lanes split a dense layer; each routes tokens of its own, and has the shared expert whole (runtime/plan_moe.py).
    split: Split = "whole" if kind == "shared" else "tp"
    builder.linear(at + gate, width, hidden, kind, split, layer)
    builder.linear(at + up, width, hidden, kind, split, layer)
    builder.linear(at + down, hidden, width, kind, split, layer)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Router, experts and shared experts. `width` is what the experts read and write: `hidden`, or narrower (latent)."""

    hidden: int
    width: int
    inner: int
    experts: int
    top_k: int
    shared: int = 0  # inner width of all shared experts together
    selection_bias: bool = False
    names: Names = PLAIN
    layout: Literal["separate", "out_in", "in_out"] = "separate"
    latent: bool = False
    latent_norm: bool = False  # over the sum of the experts, before it goes back to `hidden`

    def add(self, builder: Builder, at: str, layer: int) -> None:
        builder.tensor(at + "gate.weight", (self.experts, self.hidden), "router", layer=layer)
        if self.selection_bias:  # float32 as published: sums of small steps
            name = at + "gate.e_score_correction_bias"
            builder.tensor(name, (self.experts,), "router", layer=layer, dtype="F32", role="vector")
        if self.latent:
            builder.linear(at + "routed_expert_down_proj", self.width, self.hidden, "latent", layer=layer)
            if self.latent_norm:
                builder.norm(at + "routed_expert_norm", self.width, "latent", layer)
            builder.linear(at + "routed_expert_up_proj", self.hidden, self.width, "latent", layer=layer)
        if self.shared:
            add_dense(builder, at + "shared_experts.", self.shared, self.hidden, layer, "shared")
        self._experts(builder, at + "experts.", layer)

    def _experts(self, builder: Builder, at: str, layer: int) -> None:
        if self.layout == "separate":
            gate, up, down = self.names
            for name in (gate, up):
                builder.experts(f"{at}{{expert}}.{name}", self.inner, self.width, layer, self.experts)
            builder.experts(f"{at}{{expert}}.{down}", self.width, self.inner, layer, self.experts)
            return
        for name, rows, columns in (("gate_up_proj", 2 * self.inner, self.width), ("down_proj", self.width, self.inner)):
            matrix = (rows, columns) if self.layout == "out_in" else (columns, rows)
            builder.tensor(at + name, (self.experts, *matrix), "routed", "expert", layer, experts=self.experts)
