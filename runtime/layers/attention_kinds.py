"""Attention of a layer by its kind, and what all layers of a step share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.arch import AnyAttention, ArchSpec, AttentionSpec, MlaSpec
from runtime.batch import ForwardBatch
from runtime.kv import KVCache
from runtime.layers.attention import AttentionWeights, attend
from runtime.layers.attention_plan import AttentionPlan, plan_attention
from runtime.layers.kda import KdaWeights, attend_delta
from runtime.layers.mla import MlaWeights, attend_latent
from runtime.layers.rope import Rope
from runtime.layers.state_plan import StatePlan, plan_states


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """One step's batch, as the attention layers want it."""

    plan: AttentionPlan
    rope: tuple[Tensor, Tensor] | None
    interleaved: bool  # pairs that turn together lie side by side
    states: StatePlan | None
    kv: KVCache
    over_lanes: Callable[[Tensor], Tensor]  # sums a tensor over the lanes


def attention_inputs(
    batch: ForwardBatch, kv: KVCache, arch: ArchSpec, rope: Rope | None, device: torch.device, over_lanes: Callable[[Tensor], Tensor]
) -> AttentionInputs:
    """Computed once a step. States of sequences that begin are cleared."""
    plan, states = plan_attention(batch, kv, device), None
    if kv.states:
        states = plan_states(batch, device)
        states.begin(list(kv.states.values()))
    tables = rope.tables(batch.positions.to(device), kv.dtype) if rope is not None else None
    return AttentionInputs(plan, tables, arch.rope is not None and arch.rope.interleaved, states, kv, over_lanes)


def context_of(
    hidden: Tensor, spec: AnyAttention, weights: AttentionWeights | MlaWeights | KdaWeights, inputs: AttentionInputs, i: int
) -> Tensor:
    """hidden [T, H] (normalised) -> context [T, spec.context_width] before the output projection; `i`: the layer's place in the cache."""
    if isinstance(spec, AttentionSpec):
        assert isinstance(weights, AttentionWeights) and inputs.rope is not None
        return attend(hidden, spec, weights, inputs.plan, inputs.rope, inputs.kv.pools[i], inputs.over_lanes)
    if isinstance(spec, MlaSpec):
        assert isinstance(weights, MlaWeights)
        return attend_latent(hidden, spec, weights, inputs.plan, inputs.rope, inputs.interleaved, inputs.kv.pools[i])
    assert isinstance(weights, KdaWeights) and inputs.states is not None
    return attend_delta(hidden, spec, weights, inputs.states, inputs.kv.states[i])
