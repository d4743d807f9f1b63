"""Would moving experts help? The best imbalance that a placement made from one part of the counts reaches on the *other* part.

Judging a placement on the counts it was made from flatters it: skew that changes from second to second looks curable. So the counts are
cut into two halves in time, each half is judged with the placement made from the other one, and the mean is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.expert_balance import rebalance_experts

Floats = NDArray[np.float64]
Map = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gain:
    """Aggregate max/mean rows per rank of one layer: now, and with the experts moved; `held_out` false if there was one window only."""

    now: float
    best: float
    held_out: bool

    @property
    def recoverable(self) -> float:
        """Share of the excess over a perfect balance that moving experts removes, 0..1."""
        excess = self.now - 1.0
        return float(np.clip((self.now - self.best) / excess, 0.0, 1.0)) if excess > 1e-9 else 0.0


def pack(counts: Floats, ranks: int, slots: int, hosts: int = 1, groups: int = 1) -> Map:
    """Physical slot -> expert for `counts` [E]: equal slots per rank, spare slots as replicas (`runtime.expert_balance`). BadPlacement."""
    placed = rebalance_experts(counts[None], slots, groups, hosts, ranks).phy2log[0]
    return tuple(int(expert) for expert in np.sort(placed.reshape(ranks, -1), axis=-1).ravel())


def keep_in_place(new: Map, old: Map, ranks: int) -> Map:
    """The same placement with ranks renamed and slots ordered so that as many experts as possible stay where they are."""
    if len(new) != len(old):
        return new
    size = len(new) // ranks
    groups = [list(new[r * size : (r + 1) * size]) for r in range(ranks)]
    homes = [list(old[r * size : (r + 1) * size]) for r in range(ranks)]
    overlap = np.array([[len(set(group) & set(home)) for home in homes] for group in groups])
    placed: list[list[int]] = [[] for _ in range(ranks)]
    for _ in range(ranks):
        group, home = divmod(int(np.argmax(overlap)), ranks)
        placed[home] = _same_slots(groups[group], homes[home])
        overlap[group, :] = -1
        overlap[:, home] = -1
    return tuple(expert for owned in placed for expert in owned)


def _same_slots(group: list[int], home: list[int]) -> list[int]:
    rest = list(group)
    kept: list[int | None] = []
    for expert in home:
        stays = expert in rest
        kept.append(expert if stays else None)
        if stays:
            rest.remove(expert)
    return [expert if expert is not None else rest.pop(0) for expert in kept]


def rank_rows(counts: Floats, placed: Map, ranks: int) -> Floats:
    """[..., E] rows per expert -> [..., R] rows per rank; the rows of a replicated expert are split evenly over its slots."""
    slots = np.asarray(placed)
    shared = counts / np.maximum(np.bincount(slots, minlength=counts.shape[-1]), 1)
    return np.asarray(shared[..., slots].reshape(*counts.shape[:-1], ranks, len(slots) // ranks).sum(axis=-1))


def imbalance(rows: Floats) -> float:
    """max/mean over the last axis of [..., R], averaged over the others with the rows as weights; 1.0 where there is nothing."""
    total = rows.sum()
    return float(rows.max(axis=-1).sum() * rows.shape[-1] / total) if total else 1.0


def gain(counts: Floats, placed: Map, ranks: int, slots: int | None = None) -> Gain:
    """`counts` [W, E] rows per expert in W windows of time, `placed` the slot map in force; the best map has `slots` slots, or as many."""
    windows, room = len(counts), len(placed) if slots is None else slots
    now = imbalance(rank_rows(counts, placed, ranks))
    if windows < 2:
        return Gain(now, imbalance(rank_rows(counts, pack(counts.sum(axis=0), ranks, room), ranks)), False)
    halves = (counts[: windows // 2], counts[windows // 2 :])
    best_rows = [rank_rows(judged, pack(learnt.sum(axis=0), ranks, room), ranks) for learnt, judged in (halves, halves[::-1])]
    return Gain(now, imbalance(np.concatenate(best_rows)), True)
