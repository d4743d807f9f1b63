"""Queueing as a consequence: replays the recorded arrivals with steps that are a little shorter, and sees what wait is left.

A rank admits requests in order of arrival. The time from one admission to the next, while somebody waits, is the effective service
time S of the first: whatever held the second one back (token budget, sequence limit, memory) passes at the pace of the steps. With it
Lindley's recursion W' = max(0, W + S - A) gives back the waits that were recorded; with S shortened by the part of the step that a
cause takes it gives the wait without the cause. The difference is the wait *induced* by it. In a simulation at 80 % utilisation a
cause that costs 10 ms directly induced over 2 s of the p99 (reference/causes_latency_network_hang_load.md section 3.3): a report of
direct costs alone would have said "queueing".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Replay:
    """[n] waits beyond one step, in the unit of the inputs: as recorded, and what is left without the causes."""

    measured: Floats
    intrinsic: Floats

    @property
    def induced_share(self) -> float:
        """Part of all waiting that goes away with the causes."""
        total = float(self.measured.sum())
        return float(np.clip(1.0 - self.intrinsic.sum() / total, 0.0, 1.0)) if total > 0 else 0.0


def lindley(arrivals: Floats, service: Floats) -> Floats:
    """[n] wait of each request: sorted arrivals, and the service time of each, in one unit; one server."""
    wait = np.zeros(len(arrivals))
    for i in range(1, len(arrivals)):
        wait[i] = max(0.0, wait[i - 1] + service[i - 1] - (arrivals[i] - arrivals[i - 1]))
    return wait


def effective_service(arrivals: Floats, waits: Floats) -> Floats:
    """[n] service times that give the recorded waits: to the next admission where the next one had to wait, unknown (0) elsewhere."""
    admitted = arrivals + waits
    service = np.zeros(len(arrivals))
    held = waits[1:] > 0
    service[:-1][held] = np.maximum(np.diff(admitted)[held], 0.0)
    return service


def induced(arrivals: Floats, waits: Floats, share: float, step: float) -> Replay:
    """One rank's requests in order of arrival. `share` 0..1 of every step is what the causes take; `step` is how long one takes.

    The first `step` of a wait is for the step that is running when a request arrives: no queue, and left out.
    """
    queued = np.maximum(waits - step, 0.0)
    left = lindley(arrivals, effective_service(arrivals, queued) * (1.0 - share))
    return Replay(queued, np.minimum(left, queued))
