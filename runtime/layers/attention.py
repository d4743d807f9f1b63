"""Grouped-query attention over the paged cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.arch import AttentionSpec
from runtime.kv_pool import KvPool
from runtime.layers.attention_plan import AttentionPlan, DecodeGroup, PrefillSpan
from runtime.layers.norm import RmsNorm, TokenNorm, head_norm
from runtime.layers.rope import rotate
from runtime.layers.sinks import attend_with_sinks


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    qkv: Tensor  # [(heads + 2 kv_heads) * D, H]
    qkv_bias: Tensor | None
    qk_norm: RmsNorm | TokenNorm | None  # of [T, heads + kv_heads, D]
    out: Tensor  # [H, heads * D]
    out_bias: Tensor | None
    sinks: Tensor | None = None  # [heads]

    @classmethod
    def of(cls, targets: dict[str, Tensor], at: str, spec: AttentionSpec, whole: AttentionSpec, eps: float) -> AttentionWeights:
        """`spec` is this lane's part of `whole`."""
        norm: RmsNorm | TokenNorm | None = None
        if spec.qk_norm is not None:
            weights = targets[at + "q_norm"], targets[at + "k_norm"]
            widths = whole.heads * whole.head_dim, whole.kv_heads * whole.head_dim
            lanes = whole.heads // spec.heads
            if spec.qk_norm == "whole":
                norm = TokenNorm(*weights, eps, spec.head_dim, widths, lanes)
            else:
                norm = head_norm(*weights, spec, eps)
        biases = targets.get(at + "qkv_bias"), targets.get(at + "o_bias")
        return cls(targets[at + "qkv"], biases[0], norm, targets[at + "o"], biases[1], targets.get(at + "sinks"))

    def normed(self, heads: Tensor, over_lanes: Callable[[Tensor], Tensor]) -> Tensor:
        """Query and key heads [T, heads + kv_heads, D] -> the same, normalised where the model does so."""
        norm = self.qk_norm
        if norm is None:
            return heads
        return norm(heads, over_lanes) if isinstance(norm, TokenNorm) else norm(heads)


def attend(
    hidden: Tensor,
    spec: AttentionSpec,
    weights: AttentionWeights,
    plan: AttentionPlan,
    rope: tuple[Tensor, Tensor],
    pool: KvPool,
    over_lanes: Callable[[Tensor], Tensor],
) -> Tensor:
    """hidden [T, H] (normalised) -> context [T, heads * D], before the output projection. Writes the chunk's keys and values.

    pool: the layer's cache, [2 * kv_heads, blocks, block_size, D]. over_lanes: sums a tensor over the lanes.
    """
    count, dim = hidden.shape[0], spec.head_dim
    both = spec.heads + spec.kv_heads
    qkv = F.linear(hidden, weights.qkv, weights.qkv_bias).view(count, both + spec.kv_heads, dim)
    _turn(qkv[:, :both], weights, rope, over_lanes)
    plan = plan if spec.window is None else plan.within(spec.window)
    pool.write(plan.slots, qkv[:, spec.heads :].transpose(0, 1))
    if plan.alike is not None:
        return _decode(qkv, plan.alike, spec, pool, weights.sinks)
    out = torch.empty(count, spec.heads * dim, dtype=hidden.dtype, device=hidden.device)
    for span in plan.prefill:
        out[span.start : span.stop] = _prefill(qkv, span, spec, pool, weights.sinks)
    for group in plan.decode:
        out[group.tokens] = _decode(qkv, group, spec, pool, weights.sinks)
    return out


def _turn(heads: Tensor, weights: AttentionWeights, rope: tuple[Tensor, Tensor], over_lanes: Callable[[Tensor], Tensor]) -> None:
    """q and k heads [T, heads + kv_heads, D] are normalised and rotated in one go, in place: their norm weights are stacked."""
    normed = weights.normed(heads, over_lanes)
    turning = rope[0].shape[-1]
    if turning < heads.shape[-1]:  # partial rotary positions: the rest of a head stays as it is
        if normed is not heads:
            heads[..., turning:] = normed[..., turning:]
        normed, heads = normed[..., :turning], heads[..., :turning]
    rotate(normed, *rope, out=heads)


def _prefill(qkv: Tensor, span: PrefillSpan, spec: AttentionSpec, pool: KvPool, sinks: Tensor | None) -> Tensor:
    """One chunk: its queries against its own keys, or against the pages of its sequence. -> [n, heads * D]."""
    chunk = qkv[span.start : span.stop].transpose(0, 1).unsqueeze(0)  # [1, heads + 2 kv_heads, n, D]
    both = spec.heads + spec.kv_heads
    if span.pages is None:
        key, value = chunk[:, spec.heads : both], chunk[:, both:]
    else:
        held = pool.read(span.pages, span.context, 1).transpose(0, 1)  # [1, 2 kv_heads, context, D]
        key, value = held[:, : spec.kv_heads], held[:, spec.kv_heads :]
    if sinks is not None:
        query = torch.unflatten(chunk[0, : spec.heads], 0, (spec.kv_heads, -1))  # [kv_heads, heads / kv_heads, n, D]
        mask = span.visible(qkv.device)
        context = attend_with_sinks(query, key[0].unsqueeze(1), value[0].unsqueeze(1), mask, sinks.view(spec.kv_heads, -1, 1, 1))
        return context.flatten(0, 1).transpose(0, 1).reshape(span.stop - span.start, -1)
    context = F.scaled_dot_product_attention(
        chunk[:, : spec.heads], key, value, span.mask, is_causal=span.mask is None, enable_gqa=spec.heads != spec.kv_heads
    )
    return context[0].transpose(0, 1).reshape(span.stop - span.start, -1)


def _decode(qkv: Tensor, group: DecodeGroup, spec: AttentionSpec, pool: KvPool, sinks: Tensor | None) -> Tensor:
    """One token each of N sequences -> [N, heads * D]. The query heads that share a kv head take the place of the query length, so
    that no key is repeated."""
    held = pool.read(group.pages, group.context, group.count)
    key, value = held[: spec.kv_heads], held[spec.kv_heads :]  # [kv_heads, N, context, D]
    query = qkv[group.tokens, : spec.heads].view(group.count, spec.kv_heads, -1, spec.head_dim).transpose(0, 1)
    if sinks is not None:
        context = attend_with_sinks(query, key, value, group.mask, sinks.view(spec.kv_heads, 1, -1, 1))
    else:
        context = F.scaled_dot_product_attention(query, key, value, group.mask)  # [kv_heads, N, heads / kv_heads, D]
    return context.transpose(0, 1).reshape(group.count, -1)
