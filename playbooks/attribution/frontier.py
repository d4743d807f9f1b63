"""Frontier accounting: where the time of a layer went, without guessing which rank was "the" slow one.

t_j(r) is the time at which rank r ends segment j, F_j = max over r of t_j(r). The increments F_j - F_{j-1} telescope: their sum is
the time of the layer exactly, whatever the ranks did. Taking the shortest rank's duration as "the transfer" instead loses a slow link
in the residual (420 of 944 ms in the measurement; reference/causes_latency_network_hang_load.md section 3.1; the idea is
StageFrontier, arXiv 2606.06751).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SEGMENTS = ("attention", "router", "exchange", "dispatch", "experts", "combine")
EXCHANGE, EXPERTS = SEGMENTS.index("exchange"), SEGMENTS.index("experts")


@dataclass(frozen=True, slots=True)
class Frontier:
    """Of n layers of steps: `increments` [n, 6] ns, `last` [n] column of the last rank at the end of the experts, `ends` [n, R] ns."""

    increments: Floats
    last: Ints
    ends: Floats

    @property
    def total(self) -> Floats:
        return np.asarray(self.increments.sum(axis=1))

    def of(self, segment: str) -> Floats:
        return np.asarray(self.increments[:, SEGMENTS.index(segment)])


def frontier(start: Floats, segments: Floats, one_clock: bool = True) -> Frontier:
    """`start` [n, R] ns and `segments` [n, R, 6] ns; NaN where a rank has no row. Several clocks: ranks are aligned on the exchange.

    Without a common clock the end of the count exchange is taken as simultaneous: it is a tiny collective that nobody can leave before
    the last one entered (section 3.4, rule 5). Its own increment is then the mean over ranks of what is left, and a late start is hidden.
    """
    times = np.concatenate([start[:, :, None], start[:, :, None] + np.cumsum(segments, axis=2)], axis=2)
    if not one_clock:
        times = times - times[:, :, EXCHANGE + 1][:, :, None]
    front = np.nanmax(times, axis=1)
    ends = times[:, :, EXPERTS + 1]
    last = np.argmax(np.where(np.isnan(ends), -np.inf, ends), axis=1)
    return Frontier(np.diff(front, axis=1), last.astype(np.int64), ends)


def waits(entry: Floats) -> Floats:
    """[n, R] entry times into a collective -> [n, R] time each rank waits for the last one. The rank that waits least is the slow one."""
    return np.asarray(np.nanmax(entry, axis=1, keepdims=True) - entry)
