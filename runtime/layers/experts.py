"""The expert computation of one rank: rows grouped by local slot."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.arch import SILU, Activation
from runtime.weights import ExpertBank


def run_experts(rows: Tensor, per_slot: Tensor, bank: ExpertBank, activation: Activation = SILU) -> Tensor:
    """rows [N, H] sorted by slot, per_slot [slots] rows of each -> [N, H]: down(act(gate x, up x)) of each row's expert."""
    if rows.shape[0] == 0:
        return rows
    if rows.device.type == "cpu":
        return _slot_by_slot(rows, per_slot.tolist(), bank, activation)
    ends = per_slot.cumsum(0, dtype=torch.int32)
    inner = F.grouped_mm(rows, bank.gate_up.transpose(1, 2), offs=ends)
    if bank.gate_up_bias is None or bank.down_bias is None:
        return F.grouped_mm(gated(inner, activation), bank.down.transpose(1, 2), offs=ends)
    slots = torch.arange(per_slot.shape[0], device=rows.device).repeat_interleave(per_slot, output_size=rows.shape[0])
    inner += bank.gate_up_bias.index_select(0, slots)
    out = F.grouped_mm(gated(inner, activation), bank.down.transpose(1, 2), offs=ends)
    return out + bank.down_bias.index_select(0, slots)


def _slot_by_slot(rows: Tensor, counts: list[int], bank: ExpertBank, activation: Activation) -> Tensor:
    """Only the slots that have rows. On the CPU grouped_mm is this loop in C++ over all slots, with views made anew for each: twice as
    slow for the few rows of decoding, equal for the many of prefill."""
    active = [slot for slot, count in enumerate(counts) if count]
    sizes = [counts[slot] for slot in active]
    if len(active) == 1:
        return expert_rows(rows, bank, active[0], activation)
    inner = rows.new_empty(rows.shape[0], bank.gate_up.shape[1])
    for slot, x, y in zip(active, rows.split_with_sizes(sizes), inner.split_with_sizes(sizes), strict=True):
        _affine(x, bank.inward[slot], bank.gate_up_bias, slot, y)
    inner = gated(inner, activation)
    out = torch.empty_like(rows)
    for slot, x, y in zip(active, inner.split_with_sizes(sizes), out.split_with_sizes(sizes), strict=True):
        _affine(x, bank.outward[slot], bank.down_bias, slot, y)
    return out


def expert_rows(rows: Tensor, bank: ExpertBank, slot: int, activation: Activation, out: Tensor | None = None) -> Tensor:
    """rows [N, H] -> [N, H] of one expert."""
    inner = _affine(rows, bank.inward[slot], bank.gate_up_bias, slot)
    return _affine(gated(inner, activation), bank.outward[slot], bank.down_bias, slot, out)


def _affine(rows: Tensor, matrix: Tensor, biases: Tensor | None, slot: int, out: Tensor | None = None) -> Tensor:
    if biases is None:
        return torch.mm(rows, matrix, out=out)
    return torch.addmm(biases[slot], rows, matrix, out=out)


def gated(inner: Tensor, activation: Activation = SILU) -> Tensor:
    """[N, 2 I] -> [N, I]: what the activation makes of the first half (gate) and the second (up)."""
    gate, up = inner.chunk(2, -1)
    if activation.kind == "silu":
        return F.silu(gate).mul_(up)
    scale, limit = activation.scale, activation.limit
    if activation.kind == "clamped_swiglu":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(gate * scale) * (up + 1)
    wide, passed = gate.float(), up.float()  # in float32, as the published model does
    return (scale * torch.tanh(wide / scale) * wide.sigmoid() * (limit * torch.tanh(passed / limit))).to(inner.dtype)
