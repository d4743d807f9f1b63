"""The mixture of experts of one layer: route, exchange counts, dispatch, compute, combine.

One row per (token, expert) assignment, sorted by physical slot and therefore by (destination rank, local slot). The answer is summed
per token in the order of its top-k, so that it depends neither on the placement nor on what else is in the batch.

A shared expert is computed while rows travel: its inward half during the dispatch, its outward half during the combine.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.arch import MoeSpec
from runtime.batch import StepContext
from runtime.layer_times import LayerTimes
from runtime.layers.experts import gated, run_experts
from runtime.layers.router import choose
from runtime.layers.slot_map import SlotMap
from runtime.parallel import Group
from runtime.weights import ExpertBank, ExpertWeights


class Mixture:
    """One MoE layer on one rank. `index` counts MoE layers, `layer` all layers."""

    def __init__(self, spec: MoeSpec, weights: ExpertWeights, slots: SlotMap, group: Group, index: int, layer: int) -> None:
        self.spec = spec
        self.weights = weights
        self.slots = slots
        self.group = group
        self.index = index
        self.layer = layer
        self.forecast: Callable[[Tensor], None] = _no_forecast  # given the rows that enter: what the next layer will need

    def add(self, stream: Tensor, hidden: Tensor, step: StepContext, times: LayerTimes | None) -> Tensor:
        """stream [T, H] + mixture(hidden [T, H]); marks the ends of its segments but the last."""
        group, top_k = self.group, self.spec.router.top_k
        shares, experts = self.route(hidden)
        slots = self.slots(experts)  # [T * k]
        order = slots.argsort(stable=True)
        counts = slots.bincount(minlength=self.slots.slots)  # [S]
        latent = self.weights.latent
        seen = hidden if latent is None else F.linear(hidden, latent.down)
        rows = seen.index_select(0, order // top_k)  # [T * k, width of the experts' input]
        if times is not None:
            times.mark()
        sent, received, arrived = self._exchange(counts, rows.shape[0], step)
        if times is not None:
            times.mark()
        flight = group.start_all_to_all(rows, sent, received, "dispatch", self.layer, step)
        inner = self._shared_inward(hidden, times)
        rows = flight.wait()
        if group.size == 1:
            rows = self._compute(rows, hidden, counts, counts, step, times)
        else:
            regroup = _by_slot(arrived)  # rows come by source rank, then slot
            rows = self._compute(rows.index_select(0, regroup), hidden, counts, arrived.sum(0), step, times)
            rows = torch.empty_like(rows).index_copy_(0, regroup, rows)
        flight = group.start_all_to_all(rows, received, sent, "combine", self.layer, step)
        if inner is not None:
            if times is not None:
                times.shared_begin()
            stream = self._shared_outward(stream, inner, step)
            if times is not None:
                times.shared_done()
        rows = flight.wait()
        assigned = torch.empty_like(rows).index_copy_(0, order, rows).view(-1, top_k, rows.shape[-1])
        if latent is None:
            return torch.baddbmm(stream.unsqueeze(1), shares.unsqueeze(1), assigned).squeeze(1)
        total = torch.bmm(shares.unsqueeze(1), assigned).squeeze(1)  # the norm is of the sum over all experts, on whichever rank they are
        return torch.addmm(stream, total if latent.norm is None else latent.norm(total), latent.up.t())

    def route(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [T, H] -> (weights [T, k] in hidden's dtype, experts [T, k])."""
        return choose(hidden, self.weights, self.spec.router)

    def _shared_inward(self, hidden: Tensor, times: LayerTimes | None) -> Tensor | None:
        """hidden [T, H] -> [T, I] of the shared expert; None where there is none."""
        shared = self.weights.shared
        if shared is None:
            return None
        if times is not None:
            times.shared_begin()
        inner = gated(F.linear(hidden, shared.gate_up), self.spec.activation)
        if times is not None:
            times.shared_done()
        return inner

    def _shared_outward(self, stream: Tensor, inner: Tensor, step: StepContext) -> Tensor:
        """stream [T, H] + what the shared expert makes of inner [T, I]. Every rank holds it whole: nothing is reduced in `step`."""
        shared = self.weights.shared
        assert shared is not None
        return torch.addmm(stream, inner, shared.down.t())

    def _exchange(self, counts: Tensor, rows: int, step: StepContext) -> tuple[list[int], list[int], Tensor]:
        """counts [S] -> rows sent to and received from each rank, and the received rows per (rank, local slot)."""
        size = self.group.size
        local = counts.shape[0] // size
        arrived = self.group.all_to_all(counts, [local] * size, [local] * size, "exchange", self.layer, step)
        if size == 1:
            return [rows], [rows], arrived
        arrived = arrived.view(size, local)
        sent, received = torch.stack((counts.view(size, local).sum(1), arrived.sum(1))).tolist()
        return sent, received, arrived

    def _compute(
        self, rows: Tensor, hidden: Tensor, counts: Tensor, per_slot: Tensor, step: StepContext, times: LayerTimes | None
    ) -> Tensor:
        """The expert segment: rows [N, H] sorted by slot; per_slot [slots of this rank] rows of each. Counts what it computes."""
        if times is not None:
            times.experts_begin()
        bank = self.weights.bank
        if isinstance(bank, ExpertBank):
            out = run_experts(rows, per_slot, bank, self.spec.activation)
        else:
            out = bank.run(rows, per_slot.tolist(), self.spec.activation, lambda: self.forecast(hidden))
        if times is not None:
            times.experts_done()
            times.rows, times.active = rows.shape[0], int(per_slot.count_nonzero())
        step.rows_received.append(rows.shape[0])
        if step.counter is not None:
            step.counter.count(self.index, counts, per_slot)
        return out


def _no_forecast(hidden: Tensor) -> None:
    """All experts are in memory."""


def _by_slot(arrived: Tensor) -> Tensor:
    """arrived [ranks, slots] rows per source rank and slot -> the order that puts rows of one slot side by side."""
    ranks, slots = arrived.shape
    slot = torch.arange(slots, device=arrived.device).repeat(ranks).repeat_interleave(arrived.flatten())
    return slot.argsort(stable=True)
