"""Why is the tail worse than the typical? Parts of a step or request, averaged over the tail, less the same over the median band."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from playbooks.attribution.bootstrap import Interval, block_weights, quantiles

Floats = NDArray[np.float64]

# A tail quantile of fewer samples than this in the tail is undetermined: DESIGN.md section 5.
LEAST_IN_TAIL = 30
MEDIAN_BAND = (0.40, 0.60)


@dataclass(frozen=True, slots=True)
class Tail:
    """`threshold`: the quantile; `samples` at or above it; `excess` tail mean less typical mean; `parts` the same for every part."""

    threshold: float
    samples: int
    excess: float
    parts: dict[str, Interval]

    @property
    def determined(self) -> bool:
        return self.samples >= LEAST_IN_TAIL

    def share(self, part: str) -> float:
        return self.parts[part].value / self.excess if self.excess > 0 else 0.0


def tail_quantile(samples: Floats, q: float = 0.99) -> float | None:
    """The quantile, or None when fewer than 30 samples lie at or above it."""
    if len(samples) * (1 - q) < LEAST_IN_TAIL:
        return None
    return float(np.quantile(samples, q))


def compare(total: Floats, parts: dict[str, Floats], q: float = 0.95, draws: int = 400, seed: int = 0) -> Tail:
    """`total` [n] and every part [n], time-ordered, one unit. Tail = samples >= quantile q; typical = between the 40th and 60th
    percentile.
    """
    low, high, threshold = np.quantile(total, [*MEDIAN_BAND, q])
    in_tail, typical = total >= threshold, (total >= low) & (total <= high)
    weights = block_weights(len(total), draws, seed)
    intervals = {}
    for name, values in parts.items():
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = _means(weights, values, in_tail) - _means(weights, values, typical)
        intervals[name] = quantiles(float(values[in_tail].mean() - values[typical].mean()), drawn)
    excess = float(total[in_tail].mean() - total[typical].mean())
    return Tail(float(threshold), int(in_tail.sum()), excess, intervals)


def _means(weights: NDArray[np.int64], values: Floats, mask: NDArray[np.bool_]) -> Floats:
    return np.asarray((weights @ np.where(mask, values, 0.0)) / (weights @ mask.astype(np.int64)))
