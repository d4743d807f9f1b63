"""Quantiles with intervals, and the honesty to give none where the numbers do not decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000
LEVEL = 0.95
AT_ONCE = 2_000_000  # resampled values held at once, 16 MB
TAIL = 30  # requests that must lie in the tail of a p99 (shared design, section 5: fewer than 30 in the tail, no p99)
# Least samples for the others: with fewer, all lie below the quantile with probability q^n > 5 %, so no upper bound exists.
LEAST = {0.5: 5, 0.9: 29}


@dataclass(frozen=True, slots=True)
class Quantile:
    """An estimate and its 95 % interval in the unit of the samples; all None with a `reason` where it is undetermined."""

    q: float
    n: int
    value: float | None
    low: float | None
    high: float | None
    reason: str = ""


def needed(q: float) -> int:
    """Samples without which a quantile is undetermined."""
    return LEAST.get(q, round(TAIL / (1 - q)))


def quantiles(samples: Sequence[float], qs: tuple[float, ...] = (0.5, 0.9, 0.99), seed: int = 0) -> dict[str, Quantile]:
    """`p50`, `p90`, `p99` of samples in time order.

    Intervals are percentile intervals of a moving-block bootstrap (Kuensch 1989; block length n^(1/3)): neighbouring requests share
    batches and queues, so resampling them one by one would make the interval too narrow.
    """
    data = np.asarray(samples, dtype=np.float64)
    decided = [q for q in qs if len(data) >= needed(q)]
    found = {_name(q): _undetermined(q, len(data)) for q in qs if q not in decided}
    if decided:
        estimates = np.quantile(data, decided)
        spread = np.quantile(_resampled(data, decided, seed), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        for index, q in enumerate(decided):
            low, high = spread[:, index]
            found[_name(q)] = Quantile(q, len(data), float(estimates[index]), float(low), float(high))
    return {_name(q): found[_name(q)] for q in qs}


def _resampled(data: np.ndarray, qs: list[float], seed: int) -> np.ndarray:
    """Quantiles of RESAMPLES bootstrap samples, shape [RESAMPLES, len(qs)]."""
    rng = np.random.default_rng(seed)
    length = max(1, round(len(data) ** (1 / 3)))
    blocks = -(-len(data) // length)
    offsets = np.arange(length)
    found = []
    for rows in np.array_split(np.arange(RESAMPLES), -(-RESAMPLES * len(data) // AT_ONCE)):
        starts = rng.integers(0, len(data), (len(rows), blocks, 1))
        picked = (starts + offsets).reshape(len(rows), -1)[:, : len(data)] % len(data)  # circular: every sample equally likely
        found.append(np.quantile(data[picked], qs, axis=1).T)
    return np.concatenate(found)


def _undetermined(q: float, n: int) -> Quantile:
    tail = f"{round(n * (1 - q))} of {TAIL} needed in the tail; " if q not in LEAST else ""
    return Quantile(q, n, None, None, None, f"undetermined: {tail}{n} measured, {needed(q)} needed")


def _name(q: float) -> str:
    return f"p{q * 100:g}"
