"""Offsets between the clocks of ranks on different hosts, from the exits of tiny collectives only.

Nobody leaves a tiny collective before the last one has entered, and then all leave within its latency: exits are as simultaneous as
anything a program sees. Exits of collectives that carry bytes are not: with a slow link they put a clock off by 10 to 35 ms
(measured, reference/causes_latency_network_hang_load.md section 3.4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Clocks drift apart by microseconds a second: a line is fitted in windows of this length (section 3.4, rule 2).
WINDOW = 60e9
# A line needs this many exits; fewer give one offset.
LEAST = 16


@dataclass(frozen=True, slots=True)
class Offsets:
    """`offset` [n, R] ns: each rank's clock minus the first rank's, at every exit; `error` [R] ns: MAD/sqrt(n), below which nothing is
    said. `violation`: the largest time by which an exit still precedes the last entry, ns: it bounds the error from the other side.
    """

    offset: Floats
    error: Floats
    violation: float


def estimate(enter: Floats, exit: Floats) -> Offsets:
    """`enter`, `exit` [n, R] ns in order of time, of tiny collectives that all ranks took part in; NaN where a rank has no row."""
    apart = exit - exit[:, :1]
    at = exit[:, 0]
    offset = np.zeros_like(apart)
    error = np.zeros(apart.shape[1])
    for rank in range(1, apart.shape[1]):
        offset[:, rank], error[rank] = _line(at, apart[:, rank])
    corrected = exit - offset
    early = np.nanmax(enter - offset, axis=1) - np.nanmin(corrected, axis=1)
    return Offsets(offset, error, float(max(0.0, np.nanmax(early, initial=0.0))))


def _line(at: Floats, apart: Floats) -> tuple[Floats, float]:
    """A robust line in every window: median of the halves, so that a late wake-up moves nothing. And the error of the whole."""
    fitted, errors = np.zeros_like(apart), []
    window = np.floor((at - at[0]) / WINDOW)
    for number in np.unique(window):
        here = (window == number) & np.isfinite(apart)
        if not here.any():
            continue
        middle, slope = float(np.median(apart[here])), 0.0
        if here.sum() >= LEAST:
            early, late = np.array_split(np.flatnonzero(here), 2)
            run = float(np.median(at[late]) - np.median(at[early]))
            slope = float(np.median(apart[late]) - np.median(apart[early])) / run if run > 0 else 0.0
        line = middle + slope * (at - float(np.median(at[here])))
        fitted[window == number] = line[window == number]
        spread = 1.4826 * float(np.median(np.abs(apart[here] - line[here])))
        errors.append(spread / np.sqrt(here.sum()))
    return fitted, float(max(errors, default=0.0))
