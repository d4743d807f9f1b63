"""How much of each step is covered by intervals of something else: collections, compilations, encoded images."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from playbooks.case import Case
from playbooks.measured import Floats


def spans_of_steps(case: Case) -> tuple[Floats, Floats]:
    """[S] begin and end of every step over all ranks, ns since the window's start."""
    steps = case.steps
    return np.nanmin(steps["ts"], axis=1), np.nanmax(steps["ts"] + steps["dur"], axis=1)


def covered(case: Case, intervals: Iterable[tuple[float, float]]) -> Floats:
    """[S] ns of each step inside the union of the intervals (begin, end), at most the step's wall time.

    Ranks step in lockstep, so that what two ranks do at the same time costs a step only once.
    """
    begin, end = spans_of_steps(case)
    inside, until = np.zeros(len(begin)), -np.inf
    for start, stop in sorted(intervals):
        fresh = max(start, until)
        if stop > fresh:
            inside += np.clip(np.minimum(end, stop) - np.maximum(begin, fresh), 0.0, None)
            until = stop
    return np.minimum(inside, case.steps.wall)
