"""Kimi delta attention: short convolutions, then a gated delta rule over a state per head, one token at a time or in chunks.

A sequence's state is the last inputs of the convolutions and S [heads, D, D] (key by value), both kept from chunk to chunk. For a token
with q, k of unit length (q / sqrt(D)), log decays g [D], and strength b:

    S <- diag(exp g) S;   S <- S + k (b (v - k^T S))^T;   o = S^T q

Formulas: Kimi Linear (arXiv 2510.26692), and transformers 5.24, models/kimi_linear; the bounded decay of Kimi K3: fla-core 0.6.0,
fla/ops/kda, naive_kda_lowerbound_gate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.arch import KdaSpec
from runtime.layers.delta_rule import Steps, delta_chunks, delta_step
from runtime.layers.norm import RmsNorm
from runtime.layers.state_plan import StatePlan
from runtime.recurrent import RecurrentState

L2_EPS = 1e-6  # inside the square root, as fla-core has it


@dataclass(frozen=True, slots=True)
class KdaWeights:
    qkv: Tensor  # [3 * heads * D, H]
    conv: Tensor  # [3 * heads * D, taps] float32, the oldest tap first
    f_a: Tensor  # [D, H]
    f_b: Tensor  # [heads * D, D]
    dt_bias: Tensor  # [heads * D] float32
    rate: Tensor  # [heads, 1] float32, exp(A_log)
    beta: Tensor  # [heads, H]
    gate: tuple[Tensor, ...]  # one matrix [heads * D, H], or two through D values
    norm: RmsNorm  # [D] float32
    out: Tensor  # [H, heads * D]
    out_bias: Tensor | None = None

    @classmethod
    def of(cls, targets: dict[str, Tensor], at: str, spec: KdaSpec, eps: float) -> KdaWeights:
        ours = at + "kda."
        gate = (targets[ours + "g"],) if spec.full_gate else (targets[ours + "g_a"], targets[ours + "g_b"])
        return cls(
            targets[ours + "qkv"], targets[ours + "conv"].squeeze(1), targets[ours + "f_a"], targets[ours + "f_b"],
            targets[ours + "dt_bias"], targets[ours + "decay"].exp().unsqueeze(1), targets[ours + "beta"], gate,
            RmsNorm(targets[ours + "o_norm"], eps), targets[at + "o"],
        )  # fmt: skip


def attend_delta(hidden: Tensor, spec: KdaSpec, weights: KdaWeights, plan: StatePlan, state: RecurrentState) -> Tensor:
    """hidden [T, H] (normalised) -> context [T, heads * D], before the output projection. Moves every sequence's state on."""
    mixed = _convolve(F.linear(hidden, weights.qkv), weights.conv, plan, state)  # [T, 3 * heads * D] float32
    query, key, value = torch.unflatten(mixed, 1, (3, spec.heads, spec.head_dim)).unbind(1)
    steps = Steps(_unit(query) * spec.head_dim**-0.5, _unit(key), value, _decay(hidden, spec, weights), _strength(hidden, weights))
    out = torch.empty_like(value)
    for span in plan.spans:
        part = slice(span.start, span.stop)
        out[part], state.memory[span.slot] = delta_chunks(steps.part(part), state.memory[span.slot])
    if plan.singles is not None:
        memory = state.memory[plan.single_slots]
        out[plan.singles] = delta_step(steps.part(plan.singles), memory)
        state.memory[plan.single_slots] = memory
    gate = hidden
    for matrix in weights.gate:
        gate = F.linear(gate, matrix)
    return (weights.norm(out) * gate.float().view_as(out).sigmoid()).flatten(1).to(hidden.dtype)


def _convolve(rows: Tensor, taps: Tensor, plan: StatePlan, state: RecurrentState) -> Tensor:
    """rows [T, C] -> silu(causal depthwise convolution) [T, C] float32; keeps the last inputs of every sequence."""
    rows = rows.float()
    out = torch.empty_like(rows)
    count = taps.shape[1]
    for span in plan.spans:
        whole = torch.cat((state.window[span.slot], rows[span.start : span.stop]))  # [taps - 1 + n, C]
        length = span.stop - span.start
        total = whole[:length] * taps[:, 0]
        for tap in range(1, count):
            total.addcmul_(whole[tap : tap + length], taps[:, tap])
        out[span.start : span.stop] = total
        state.window[span.slot] = whole[length:]
    if plan.singles is not None:
        whole = torch.cat((state.window[plan.single_slots], rows[plan.singles].unsqueeze(1)), 1)  # [N, taps, C]
        out[plan.singles] = (whole * taps.t()).sum(1)
        state.window[plan.single_slots] = whole[:, 1:]
    return F.silu(out)


def _unit(heads: Tensor) -> Tensor:
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + L2_EPS)


def _decay(hidden: Tensor, spec: KdaSpec, weights: KdaWeights) -> Tensor:
    """Log decays [T, heads, D] float32, none above 0."""
    raw = F.linear(F.linear(hidden, weights.f_a), weights.f_b).float() + weights.dt_bias
    raw = torch.unflatten(raw, 1, (spec.heads, spec.head_dim))
    if spec.lower_bound is None:
        return -weights.rate * F.softplus(raw)
    return spec.lower_bound * (weights.rate * raw).sigmoid()


def _strength(hidden: Tensor, weights: KdaWeights) -> Tensor:
    """[T, heads] float32."""
    return F.linear(hidden, weights.beta).float().sigmoid()
