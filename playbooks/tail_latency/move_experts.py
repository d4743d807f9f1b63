"""Remedy of tail.expert-imbalance: a placement that spreads the rows that were measured evenly over the ranks.

A server with spare slots (`--redundant-experts`) gets replicas of the experts that are hottest now in them.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbooks.attribution.placement_gain import gain, keep_in_place, pack
from playbooks.expert_counts import ExpertCounts

# A layer is touched only if its imbalance falls by this much: every moved expert is read again from the checkpoint. Our choice.
WORTH = 0.02


@dataclass(frozen=True, slots=True)
class Move:
    """`layers[i]` is the new map of the i-th MoE layer; `changed` lists model layers that differ, `moved` counts slots."""

    layers: list[list[int]]
    changed: tuple[int, ...]
    moved: int


def plan_move(counts: ExpertCounts, now: list[list[int]], hosts: int = 1, groups: int = 1) -> Move:
    """`now[i]` is the map in force of the i-th MoE layer; ranks are split evenly over `hosts` in order. The router chooses from few of
    `groups` equal groups of experts.

    Layers without counts, and those that are even already, stay as they are.
    """
    numbers = sorted(counts.maps)
    if len(numbers) != len(now):
        raise ValueError(f"{len(numbers)} layers were recorded, the server has {len(now)}")
    layers, changed, moved = [], [], 0
    for number, old in zip(numbers, now, strict=True):
        new = _better(counts, number, tuple(old), hosts, groups)
        layers.append(list(new))
        different = sum(a != b for a, b in zip(new, old, strict=True))
        if different:
            changed.append(number)
            moved += different
    return Move(layers, tuple(changed), moved)


def _better(counts: ExpertCounts, layer: int, old: tuple[int, ...], hosts: int, groups: int) -> tuple[int, ...]:
    rows = counts.counts.get(layer)
    if rows is None or not rows.sum():
        return old
    found = gain(rows, old, counts.ranks)
    if found.best > found.now * (1 - WORTH):
        return old
    return keep_in_place(pack(rows.sum(axis=0), counts.ranks, len(old), hosts, groups), old, counts.ranks)
