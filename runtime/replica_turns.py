"""Which replica of an expert a token's row goes to. Numpy only.

A rank sends rows to its own replica first, then to one on its host, then to any; but no replica is given more than its even share of
the expert's rows, or a better placement would be undone by short ways. Shares are exact when all ranks have equally many rows of the
expert, as data-parallel ranks have on average. A row's replica depends on its place in the batch alone: replicas hold equal weights, so
the answer does not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PERIOD = 60  # turns after which the choice repeats: divisible by 2, 3, 4, 5 and 6 replicas


def shares(homes: Ints, ranks: int, hosts: int) -> Floats:
    """`homes` [c] rank of each replica of one expert -> [R, c] part of all its rows that goes from each rank to each replica.

    Ranks are split evenly over the hosts in order. Rows sum to 1 / R, columns to 1 / c.
    """
    demand, room = np.full(ranks, 1 / ranks), np.full(len(homes), 1 / len(homes))
    flow = np.zeros((ranks, len(homes)))
    everyone, per_host = np.arange(ranks), ranks // hosts
    for size in (1, per_host, ranks):  # own rank, own host, anywhere
        for area in range(ranks // size):
            here, there = everyone // size == area, homes // size == area
            wanted, free = demand[here].sum(), room[there].sum()
            dealt = min(wanted, free)
            if dealt > 1e-12:
                flow[np.ix_(here, there)] += np.outer(demand[here] / wanted, room[there] / free) * dealt
                demand[here] *= 1 - dealt / wanted
                room[there] *= 1 - dealt / free
    return flow


def turns(slots: tuple[int, ...], experts: int, rank: int, ranks: int, hosts: int) -> Ints:
    """`slots[s]` is the expert of slot s -> [E, PERIOD] slots that rank `rank` sends an expert's rows to, turn by turn."""
    placed = np.asarray(slots)
    table = np.empty((experts, PERIOD), dtype=np.int64)
    table[placed] = np.arange(len(placed))[:, None]  # right where an expert has one slot
    for expert in np.flatnonzero(np.bincount(placed, minlength=experts) > 1):
        mine = np.flatnonzero(placed == expert)
        share = shares(mine * ranks // len(placed), ranks, hosts)[rank]
        table[expert] = mine[_evenly(share / share.sum())]
    return table


def _evenly(share: Floats) -> Ints:
    """[c] shares that sum to 1 -> [PERIOD] indices in which each comes up so often, spread out: whoever is furthest behind is next."""
    due, order = np.zeros(len(share)), np.empty(PERIOD, dtype=np.int64)
    for turn in range(PERIOD):
        due += share
        order[turn] = chosen = int(np.argmax(np.round(due, 9)))
        due[chosen] -= 1
    return order
