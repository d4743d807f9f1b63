"""What a segment costs per unit of work, and how slow each rank is once its work is accounted for.

cost[s, r] = f_r (b0 + b1 x1 + b2 x2 ...): the coefficients are common to all ranks, f_r is the slowness of rank r. For experts the
units are the rows and the active experts: in small decode batches the time follows the number of active experts, not the rows
(reference section 2). Least squares on relative errors with Huber weights, alternating with f_r = the median of cost / prediction: a
pause, or a step in which the host took the core away, moves neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ROUNDS = 6
_HUBER = 1.345  # 95 % efficiency at the normal (Huber 1981)


@dataclass(frozen=True, slots=True)
class CostModel:
    """`coefficients` [1 + p] ns: constant, then per unit of each feature. `slowness` [R], median 1; NaN for a rank without work."""

    coefficients: Floats
    slowness: Floats

    def work(self, features: tuple[Floats, ...]) -> Floats:
        """[n, R] ns at common speed; a rank without work costs nothing."""
        total = np.full(features[0].shape, self.coefficients[0])
        for value, feature in zip(self.coefficients[1:], features, strict=True):
            total = total + value * feature
        return np.where(features[0] > 0, total, np.where(np.isnan(features[0]), np.nan, 0.0))


def fit(cost: Floats, features: tuple[Floats, ...]) -> CostModel:
    """`cost` [n, R] ns, every feature [n, R]; the first is the amount of work: samples where it is zero, or anything is unknown, are
    left out."""
    ranks = cost.shape[1]
    known = np.isfinite(cost) & np.all([np.isfinite(feature) for feature in features], axis=0)
    used = known & (cost > 0) & (features[0] > 0)
    rank = np.broadcast_to(np.arange(ranks), cost.shape)[used]
    target = cost[used]
    design = np.stack([np.ones(len(target)), *(feature[used] for feature in features)], axis=1)
    slowness = np.ones(ranks)
    if len(target) < 2 * design.shape[1]:
        return CostModel(np.array([np.median(target) if len(target) else 0.0, *[0.0] * len(features)]), slowness * np.nan)
    weights = 1.0 / np.maximum(target, np.median(target) / 10)
    coefficients = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        coefficients = _non_negative(design, target / slowness[rank], weights)
        predicted = np.maximum(design @ coefficients, np.median(target) * 1e-3)
        slowness = _slowness(target / predicted, rank, ranks)
        filled = np.where(np.isnan(slowness), 1.0, slowness)
        error = (target / filled[rank] - predicted) / predicted
        scale = 1.4826 * float(np.median(np.abs(error))) or 1e-9
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(error), 1e-12)) / predicted
        slowness = filled
    return CostModel(coefficients, _slowness(target / predicted, rank, ranks))


def mean_slowness(cost: Floats, work: Floats) -> Floats:
    """[R] sum of cost over sum of modelled work: unlike the median it sees a rank that is stopped now and then."""
    used = np.isfinite(cost) & (work > 0)
    total = np.where(used, work, 0.0).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(used, cost, 0.0).sum(axis=0) / np.where(total > 0, total, np.nan))


def block_slowness(cost: Floats, work: Floats, blocks: int) -> Floats:
    """[blocks, R] the same in consecutive blocks of time: does a slow rank stay slow?"""
    parts = np.array_split(np.arange(len(cost)), blocks)
    return np.array([mean_slowness(cost[part], work[part]) for part in parts if len(part)])


def _slowness(relative: Floats, rank: NDArray[np.int64], ranks: int) -> Floats:
    medians = np.array([np.median(relative[rank == r]) if np.any(rank == r) else np.nan for r in range(ranks)])
    return _normalised(medians)


def _normalised(medians: Floats) -> Floats:
    centre = np.nanmedian(medians) if np.any(np.isfinite(medians)) else np.nan
    return np.asarray(medians / centre)


def _non_negative(design: Floats, target: Floats, weights: Floats) -> Floats:
    """Weighted least squares with coefficients >= 0: a term that comes out negative is dropped and the others are fitted again."""
    kept = list(range(design.shape[1]))
    while kept:
        part = design[:, kept] * weights[:, None]
        scale = np.maximum(np.linalg.norm(part, axis=0), 1e-300)
        solved = np.linalg.lstsq(part / scale, target * weights, rcond=None)[0] / scale
        if solved.min() >= 0:
            full = np.zeros(design.shape[1])
            full[kept] = solved
            return full
        kept.pop(int(np.argmin(solved * scale)))
    return np.zeros(design.shape[1])
