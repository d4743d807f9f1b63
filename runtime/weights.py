"""The tensors of a model, as the layers use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from runtime.arch import Activation, AnyAttention, ArchSpec, AttentionSpec, MlaSpec, MoeSpec
from runtime.layers.attention import AttentionWeights
from runtime.layers.kda import KdaWeights
from runtime.layers.mla import MlaWeights
from runtime.layers.norm import RmsNorm
from runtime.layers.residual import ResidualQuery
from runtime.layout import Share

Targets = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class FeedForwardWeights:
    """A dense feed-forward."""

    gate_up: Tensor  # [2 I, H]
    down: Tensor  # [H, I]


class ExpertBank:
    """The experts in this rank's slots of one layer."""

    __slots__ = ("down", "down_bias", "gate_up", "gate_up_bias", "inward", "outward")

    def __init__(self, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor | None = None, down_bias: Tensor | None = None) -> None:
        self.gate_up = gate_up  # [slots, 2 I, H]
        self.down = down  # [slots, H, I]
        self.gate_up_bias = gate_up_bias  # [slots, 2 I]
        self.down_bias = down_bias  # [slots, H]
        # The same, as matrices to multiply rows with: views made once, not in every step.
        self.inward = list(gate_up.transpose(1, 2))  # slots x [H, 2 I]
        self.outward = list(down.transpose(1, 2))  # slots x [I, H]

    @classmethod
    def of(cls, targets: Targets, layer: int) -> ExpertBank:
        at = f"layers.{layer}.experts."
        biases = targets.get(at + "gate_up_bias"), targets.get(at + "down_bias")
        return cls(targets[at + "gate_up"], targets[at + "down"], *biases)

    @property
    def slots(self) -> int:
        return self.gate_up.shape[0]

    def parts(self) -> list[Tensor]:
        """Everything that makes up an expert; the first dimension is the slot."""
        return [part for part in (self.gate_up, self.down, self.gate_up_bias, self.down_bias) if part is not None]


class ColdBank(Protocol):
    """Experts of a layer that are not all in memory (runtime.tiers)."""

    slots: int

    def run(self, rows: Tensor, counts: list[int], activation: Activation, ahead: Callable[[], None]) -> Tensor:
        """rows [N, H] sorted by slot, counts [slots] -> [N, H]; `ahead` is called while experts are on their way."""


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """Projections between the hidden state and what the experts see."""

    down: Tensor  # [L, H]
    up: Tensor  # [H, L]
    norm: RmsNorm | None  # of the sum over a token's experts


@dataclass(slots=True)
class ExpertWeights:
    """A layer's router and its local experts. A placement switch replaces the bank."""

    router: Tensor  # [E, H]
    bank: ExpertBank | ColdBank
    router_bias: Tensor | None = None  # [E]
    select: Tensor | None = None  # [E], added to the scores when choosing
    shared: FeedForwardWeights | None = None
    latent: LatentWeights | None = None

    @property
    def resident(self) -> ExpertBank:
        """The experts, all in memory. ValueError where a budget keeps some of them on disk."""
        if not isinstance(self.bank, ExpertBank):
            raise ValueError("not all experts are in memory")
        return self.bank


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention_norm: RmsNorm
    attention: AttentionWeights | MlaWeights | KdaWeights
    ffn_norm: RmsNorm
    experts: ExpertWeights | None
    dense: FeedForwardWeights | None
    attention_residual: ResidualQuery | None = None
    ffn_residual: ResidualQuery | None = None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """What a rank holds. The embedding is on the first stage, norm and head on the last; both are this lane's rows of the vocabulary."""

    embed: Tensor | None  # [V / lanes, H]
    layers: list[LayerWeights]  # of its stage
    norm: RmsNorm | None
    head: Tensor | None  # [V / lanes, H]
    vision: dict[str, Tensor]
    output_residual: ResidualQuery | None = None


def assemble(arch: ArchSpec, targets: Targets, share: Share, cold: Mapping[int, ColdBank] | None = None) -> ModelWeights:
    """Names the loaded targets (`runtime.plan`) for the layers; `cold`: the experts of layers whose targets were not loaded."""
    vision = {name.removeprefix("vision."): tensor for name, tensor in targets.items() if name.startswith("vision.")}
    layers = [_layer(arch, targets, i, share, cold or {}) for i in share.layers]
    embed, norm = targets.get("embed"), targets.get("norm")
    head = targets.get("head", embed if share.last else None)  # tied
    residual = ResidualQuery.of(targets, "output_residual", arch.norm_eps)
    return ModelWeights(embed, layers, None if norm is None else RmsNorm(norm, arch.norm_eps), head, vision, residual)


def _layer(arch: ArchSpec, targets: Targets, i: int, share: Share, cold: Mapping[int, ColdBank]) -> LayerWeights:
    at, spec = f"layers.{i}.", arch.layers[i]
    experts = dense = None
    if spec.moe is None:
        dense = _feed_forward(targets, at + "dense")
    else:
        experts = _experts(arch, spec.moe, targets, i, cold.get(i))
    norms = [RmsNorm(targets[at + name], arch.norm_eps) for name in ("attention_norm", "ffn_norm")]
    residuals = [ResidualQuery.of(targets, f"{at}{name}_residual", arch.norm_eps) for name in ("attention", "ffn")]
    attention = _attention(arch, targets, i, share.attention(spec.attention))
    return LayerWeights(norms[0], attention, norms[1], experts, dense, *residuals)


def _attention(arch: ArchSpec, targets: Targets, i: int, spec: AnyAttention) -> AttentionWeights | MlaWeights | KdaWeights:
    at = f"layers.{i}."
    if isinstance(spec, AttentionSpec):
        whole = arch.layers[i].attention
        assert isinstance(whole, AttentionSpec)
        return AttentionWeights.of(targets, at, spec, whole, arch.norm_eps)
    if isinstance(spec, MlaSpec):
        return MlaWeights.of(targets, at, spec)
    return KdaWeights.of(targets, at, spec, arch.norm_eps)


def _experts(arch: ArchSpec, moe: MoeSpec, targets: Targets, i: int, cold: ColdBank | None) -> ExpertWeights:
    at, latent = f"layers.{i}.", None
    if moe.latent is not None:
        norm = RmsNorm(targets[at + "latent.norm"], arch.norm_eps) if moe.latent_norm else None
        latent = LatentWeights(targets[at + "latent.down"], targets[at + "latent.up"], norm)
    shared = _feed_forward(targets, at + "shared") if moe.shared_width else None
    biases = targets.get(at + "router_bias"), targets.get(at + "router_select")
    bank = ExpertBank.of(targets, i) if cold is None else cold
    return ExpertWeights(targets[at + "router"], bank, *biases, shared, latent)


def _feed_forward(targets: Targets, at: str) -> FeedForwardWeights:
    return FeedForwardWeights(targets[f"{at}.gate_up"], targets[f"{at}.down"])
