"""Intervals by resampling blocks of time: neighbouring steps share their batch and their host noise, so single steps are not
independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# >= 1000 resamples and a 90 % interval: reference/causes_latency_network_hang_load.md section 3.3.
DRAWS = 1000
COVERAGE = 0.90
# Blocks as long as the cube root of the sample (Hall, Horowitz and Jing 1995), and at least four so that a burst stays together.
_SHORTEST_BLOCK = 4


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the ends of its 90 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def block_weights(n: int, draws: int = DRAWS, seed: int = 0) -> NDArray[np.int64]:
    """[draws, n] how often each of n time-ordered samples is drawn, in circular blocks."""
    if n < 1:
        raise ValueError("nothing to resample")
    block = min(n, max(_SHORTEST_BLOCK, round(n ** (1 / 3))))
    starts = np.random.default_rng(seed).integers(0, n, size=(draws, -(-n // block)))
    lengths = np.full(starts.shape[1], block)
    lengths[-1] -= int(lengths.sum()) - n
    ends = starts + lengths
    # A block adds 1 from its start on and takes it away at its end; one that runs over the end goes on at the beginning.
    edges = np.zeros((draws, 2 * n + 1), dtype=np.int64)
    row = np.arange(draws)[:, None]
    np.add.at(edges, (row, starts), 1)
    np.add.at(edges, (row, ends), -1)
    counts = np.cumsum(edges, axis=1)
    return np.asarray(counts[:, :n] + counts[:, n : 2 * n])


def quantiles(value: float, drawn: Floats, coverage: float = COVERAGE) -> Interval:
    """The percentile interval around `value` from resampled statistics."""
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Interval(value, float("nan"), float("nan"))
    low, high = np.quantile(drawn, [(1 - coverage) / 2, (1 + coverage) / 2])
    return Interval(value, float(low), float(high))


def ratio(numerator: Floats, denominator: Floats, seed: int = 0) -> Interval:
    """Interval of sum(numerator) / sum(denominator) over time-ordered samples."""
    weights = block_weights(len(numerator), seed=seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = (weights @ numerator) / (weights @ denominator)
    total = float(denominator.sum())
    return quantiles(float(numerator.sum()) / total if total else float("nan"), drawn)


def change(before: tuple[Floats, Floats], after: tuple[Floats, Floats], seed: int = 0) -> Interval:
    """Interval of ratio(after) / ratio(before) - 1, the two periods resampled independently."""
    drawn, value = [], []
    for number, (numerator, denominator) in enumerate((before, after)):
        weights = block_weights(len(numerator), seed=seed + number)
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn.append((weights @ numerator) / (weights @ denominator))
        value.append(float(numerator.sum() / denominator.sum()))
    with np.errstate(divide="ignore", invalid="ignore"):
        return quantiles(value[1] / value[0] - 1, drawn[1] / drawn[0] - 1)


def statistic(samples: Floats, of: Callable[[Floats], float], draws: int = DRAWS, seed: int = 0) -> Interval:
    """Interval of any statistic of one series, for example a quantile."""
    weights = block_weights(len(samples), draws, seed)
    index = np.arange(len(samples))
    drawn = np.array([of(samples[np.repeat(index, row)]) for row in weights])
    return quantiles(of(samples), drawn)
