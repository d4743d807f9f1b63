"""The computing time of layers with some causes taken away: what the Shapley value needs.

A layer waits twice for its last rank: at the end of the attention (with the router) and at the end of the experts. What each rank took
is kept as measured, its noise included; a cause is taken away by dividing out the rank's slowness, giving every rank the mean work at
its own pace, or subtracting the pauses that fell into the segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from playbooks.attribution.shapley import Present

Floats = NDArray[np.float64]

IMBALANCE, SPEED, PAUSE = "imbalance", "speed", "pause"
CAUSES = (IMBALANCE, SPEED, PAUSE)


@dataclass(frozen=True, slots=True)
class Segment:
    """One waited-for segment. `taken` and `pause` [n, R] ns (NaN: no row), `slowness` [R] (1: typical).

    `work` [n, R] ns at common speed if its spread over ranks is a cause (the experts), None if it is not (the attention).
    """

    taken: Floats
    pause: Floats
    slowness: Floats
    work: Floats | None = None

    def time(self, present: Present) -> Floats:
        """[n] when the last rank would be done with only the `present` causes."""
        left = np.maximum(self.taken - self.pause, 0.0)
        if SPEED not in present:
            left = left / self.slowness
        if IMBALANCE not in present and self.work is not None:
            left = evened(left, self.work)
        if PAUSE in present:
            left = left + self.pause
        return np.asarray(np.nanmax(left, axis=1))


def evened(taken: Floats, work: Floats) -> Floats:
    """Every rank at its own pace with the mean work; a rank that had no work gets the median pace."""
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = np.where(work > 0, taken / work, np.nan)
    any_pace = np.asarray(np.isfinite(pace).any(axis=1))
    middle = np.full(len(pace), np.nan)
    middle[any_pace] = np.nanmedian(pace[any_pace], axis=1)
    pace = np.where(np.isnan(pace) & ~np.isnan(taken), middle[:, None], pace)
    return np.where(any_pace[:, None], pace * np.nanmean(work, axis=1, keepdims=True), taken)


def computing(segments: tuple[Segment, ...], present: Present) -> Floats:
    """[n] computing time of the layer: the segments one after the other, each with its own last rank."""
    return np.asarray(np.sum([segment.time(present) for segment in segments], axis=0))
