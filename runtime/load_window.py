"""Expert counts of one rank over a window of steps: what becomes a row of `expert_load` per layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from runtime.placement import Placement


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """One layer's window; the fields are columns of `expert_load`."""

    layer: int  # layer index in the model
    step_first: int
    step_last: int
    placement: int
    steps: int  # steps with at least one token anywhere
    tokens_in: int
    tokens: list[int]  # assignments made by this rank's tokens, per logical expert
    physical: list[int]  # rows computed by this rank, per local slot, from all ranks
    dropped: int  # always 0: the exchange has exact splits and no capacity
    padding: int  # always 0, for the same reason
    imbalance_p50: float | None
    imbalance_p99: float | None
    above_null: float | None


def uniform_router_p99(rows: int, ranks: int) -> float:
    """99th percentile of max/mean rows per rank if every assignment chose its rank uniformly at random.

    Rows of a rank are binomial(rows, 1/ranks), normal for the sizes of interest, nearly independent between ranks:
    P(max <= x) = Phi(z)^ranks = 0.99, so max/mean = 1 + z * sqrt((ranks - 1) / rows).
    """
    if rows <= 0 or ranks <= 1:
        return 1.0
    z = NormalDist().inv_cdf(0.99 ** (1.0 / ranks))
    return 1.0 + z * math.sqrt((ranks - 1) / rows)


class ExpertCounter:
    """Accumulates counts in every step (a few in-place adds a layer); `flush` closes the window.

    The engine calls `begin` before each forward, which calls `count`; it calls `observe` with every rank's rows per layer when the
    step header brings them (one step late), and `flush` at the end of a window and before a placement switch.
    """

    def __init__(self, placement: Placement, moe_layers: tuple[int, ...], experts: int, rank: int) -> None:
        self.moe_layers = moe_layers
        self.experts = experts
        self.rank = rank
        self.rebind(placement)

    def rebind(self, placement: Placement) -> None:
        """Starts an empty window under `placement`."""
        self.placement = placement
        layers = len(self.moe_layers)
        self._logical_of = torch.tensor(placement.physical_to_logical, dtype=torch.int64)  # [L, S]
        self.sent = torch.zeros(layers, placement.slots, dtype=torch.int64)  # this rank's assignments per physical slot
        self.received = self.sent  # rows computed per local slot
        if placement.ranks > 1:
            self.received = torch.zeros(layers, placement.slots_per_rank, dtype=torch.int64)
        self._follow(self.sent.device)
        self.tokens_in = 0
        self.steps = 0
        self.first: int | None = None
        self.last = -1
        self._ratios: list[list[float]] = []  # per observed step, per layer: max/mean rows per rank
        self._above = [0] * layers

    def _follow(self, device: torch.device) -> None:
        """Counts accumulate where the model computes them: no copy and no wait in a step."""
        alone = self.received is self.sent
        self.sent = self.sent.to(device)
        self.received = self.sent if alone else self.received.to(device)
        self._sent, self._received = list(self.sent), list(self.received)  # a view a layer, made once

    def begin(self, step: int, tokens: int) -> None:
        """A step with `tokens` tokens on this rank starts."""
        if self.first is None:
            self.first = step
        self.last = step
        self.steps += 1
        self.tokens_in += tokens

    def count(self, layer: int, sent: Tensor, received: Tensor) -> None:
        """Adds one MoE layer's counts: `sent` [S] per physical slot, `received` [S_local] per local slot."""
        if sent.device != self.sent.device:
            self._follow(sent.device)
        self._sent[layer] += sent
        if received is not sent:  # one rank alone receives what it sends
            self._received[layer] += received

    def observe(self, rows: list[list[int]]) -> None:
        """Rows received in one step, `rows[rank][layer]`."""
        ranks = len(rows)
        ratios = []
        for layer in range(len(self.moe_layers)):
            per_rank = [r[layer] for r in rows]
            total = sum(per_rank)
            ratio = max(per_rank) * ranks / total if total else 1.0
            ratios.append(ratio)
            self._above[layer] += ratio > uniform_router_p99(total, ranks)
        self._ratios.append(ratios)

    def flush(self) -> list[LoadWindow]:
        """The window's rows, one per MoE layer (none if no step ran), and an empty window."""
        if self.first is None:
            return []
        logical = torch.zeros(len(self.moe_layers), self.experts, dtype=torch.int64).scatter_add_(1, self._logical_of, self.sent.cpu())
        windows = [self._window(i, logical[i].tolist()) for i in range(len(self.moe_layers))]
        self.rebind(self.placement)
        return windows

    def _window(self, index: int, tokens: list[int]) -> LoadWindow:
        assert self.first is not None
        ratios = sorted(step[index] for step in self._ratios)
        seen = len(ratios)
        return LoadWindow(
            layer=self.moe_layers[index],
            step_first=self.first,
            step_last=self.last,
            placement=self.placement.version,
            steps=self.steps,
            tokens_in=self.tokens_in,
            tokens=tokens,
            physical=self.received[index].tolist(),
            dropped=0,
            padding=0,
            imbalance_p50=ratios[seen // 2] if seen else None,
            imbalance_p99=ratios[min(seen - 1, math.ceil(0.99 * seen) - 1)] if seen else None,
            above_null=self._above[index] / seen if seen else None,
        )
