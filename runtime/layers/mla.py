"""Multi-head latent attention over the paged cache: a token's row is its normalised latent and the part of the key that turns.

Single tokens are attended in the latent space: the key projection is taken into the query and the value projection out of the sum, so
that the cache is read once for all heads. Chunks expand the latents to keys and values, which costs less when there are many queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.arch import MlaSpec
from runtime.kv_pool import KvPool
from runtime.layers.attention_plan import AttentionPlan, DecodeGroup, PrefillSpan
from runtime.layers.norm import RmsNorm
from runtime.layers.rope import pairs_to_halves, rotate


@dataclass(frozen=True, slots=True)
class MlaWeights:
    down: Tensor  # [q_rank (or heads * key_dim) + kv_rank + rope_dim, H]
    down_bias: Tensor | None
    q_norm: RmsNorm | None
    q_up: Tensor | None  # [heads * key_dim, q_rank]
    kv_norm: RmsNorm
    kv_up: Tensor  # [heads * (nope_dim + v_dim), kv_rank]
    gate: Tensor | None  # [heads * v_dim, H]
    out: Tensor  # [H, heads * v_dim]
    out_bias: Tensor | None

    @classmethod
    def of(cls, targets: dict[str, Tensor], at: str, spec: MlaSpec) -> MlaWeights:
        ours = at + "mla."
        q_norm = RmsNorm(targets[ours + "q_norm"], spec.norm_eps) if spec.q_rank is not None else None
        kv_norm = RmsNorm(targets[ours + "kv_norm"], spec.norm_eps)
        return cls(
            targets[ours + "down"], targets.get(ours + "down_bias"), q_norm, targets.get(ours + "q_up"), kv_norm,
            targets[ours + "kv_up"], targets.get(ours + "gate"), targets[at + "o"], targets.get(at + "o_bias"),
        )  # fmt: skip


def attend_latent(
    hidden: Tensor,
    spec: MlaSpec,
    weights: MlaWeights,
    plan: AttentionPlan,
    rope: tuple[Tensor, Tensor] | None,
    interleaved: bool,
    pool: KvPool,
) -> Tensor:
    """hidden [T, H] (normalised) -> context [T, heads * v_dim], before the output projection. Writes the chunk's latents.

    pool: the layer's cache, [1, blocks, block_size, kv_rank + rope_dim].
    """
    query, latent, turning = _project(hidden, spec, weights)
    if rope is not None and spec.rotated:
        for heads in (query[..., spec.nope_dim :], turning.unsqueeze(1)):
            rotate(pairs_to_halves(heads) if interleaved else heads, *rope, out=heads)
    rows = torch.cat((latent, turning), -1)  # [T, kv_rank + rope_dim]
    pool.write(plan.slots, rows.unsqueeze(0))
    out = hidden.new_empty(hidden.shape[0], spec.context_width)
    for span in plan.prefill:
        out[span.start : span.stop] = _expanded(query, rows, span, spec, weights, pool)
    for group in plan.decode:
        out[group.tokens] = _absorbed(query, group, spec, weights, pool)
    if weights.gate is not None:
        out *= F.linear(hidden, weights.gate).sigmoid()
    return out


def _project(hidden: Tensor, spec: MlaSpec, weights: MlaWeights) -> tuple[Tensor, Tensor, Tensor]:
    """hidden [T, H] -> queries [T, heads, key_dim], normalised latents [T, kv_rank], what turns of the key [T, rope_dim]."""
    down = F.linear(hidden, weights.down, weights.down_bias)
    query, latent, turning = down.split_with_sizes((down.shape[1] - spec.kv_rank - spec.rope_dim, spec.kv_rank, spec.rope_dim), 1)
    if weights.q_norm is not None and weights.q_up is not None:
        query = F.linear(weights.q_norm(query), weights.q_up)
    return torch.unflatten(query, 1, (spec.heads, spec.key_dim)), weights.kv_norm(latent), turning


def _expanded(query: Tensor, rows: Tensor, span: PrefillSpan, spec: MlaSpec, weights: MlaWeights, pool: KvPool) -> Tensor:
    """One chunk against the keys and values of its whole context -> [n, heads * v_dim]."""
    held = rows[span.start : span.stop] if span.pages is None else pool.read(span.pages, span.context, 1)[0, 0]
    both = F.linear(held[:, : spec.kv_rank], weights.kv_up)
    both = torch.unflatten(both, 1, (spec.heads, -1)).transpose(0, 1)  # [heads, context, nope_dim + v_dim]
    shared = held[:, spec.kv_rank :].expand(spec.heads, -1, -1)
    key = torch.cat((both[..., : spec.nope_dim], shared), -1)
    value = both[..., spec.nope_dim :]
    if spec.v_dim < spec.key_dim:  # as wide as the keys: attention that never writes out all logits wants them alike
        value = F.pad(value, (0, spec.key_dim - spec.v_dim))
    chunk = query[span.start : span.stop].transpose(0, 1)  # [heads, n, key_dim]
    context = F.scaled_dot_product_attention(
        chunk[None], key[None], value[None], span.mask, is_causal=span.mask is None, scale=spec.scale
    )
    return context[0, ..., : spec.v_dim].transpose(0, 1).reshape(span.stop - span.start, -1)


def _absorbed(query: Tensor, group: DecodeGroup, spec: MlaSpec, weights: MlaWeights, pool: KvPool) -> Tensor:
    """One token each of N sequences, all heads against the one latent -> [N, heads * v_dim]."""
    held = pool.read(group.pages, group.context, group.count)  # [1, N, context, kv_rank + rope_dim]
    up = torch.unflatten(weights.kv_up, 0, (spec.heads, -1))  # [heads, nope_dim + v_dim, kv_rank]
    mine = query[group.tokens]  # [N, heads, key_dim]
    inward = torch.bmm(mine[..., : spec.nope_dim].transpose(0, 1), up[:, : spec.nope_dim]).transpose(0, 1)  # [N, heads, kv_rank]
    asked = torch.cat((inward, mine[..., spec.nope_dim :]), -1)[None]
    # What turns of the key is summed with the latent and dropped: keys and values are then one tensor, read in place.
    latent = F.scaled_dot_product_attention(asked, held, held, group.mask, scale=spec.scale)[0, ..., : spec.kv_rank]
    values = torch.bmm(latent.transpose(0, 1), up[:, spec.nope_dim :].transpose(1, 2))  # [heads, N, v_dim]
    return values.transpose(0, 1).reshape(group.count, -1)
