"""How uneven a *uniform* router would be: the distribution of max/mean rows per rank when N tokens choose k of E experts at random.

Imbalance is compared with this null and never with a constant: with few tokens even a perfect router is uneven (512 tokens, E=256, k=8,
16 ranks: mean 1.11, 99th percentile 1.18; measured, reference/causes_latency_network_hang_load.md section 2).

A token chooses k *distinct* experts, so its choices per rank are multivariate hypergeometric. Small batches are simulated exactly; for
large ones the sum over tokens is normal with the same mean and covariance N k (E-k)/(E-1) (diag(p) - p p'), which the tests check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DRAWS = 4000
QUANTILE = 0.99
_EXACT_TOKENS = 48
# Quantiles are computed on this geometric grid of batch sizes and interpolated in log N: neighbours differ by under 1 % of (R - 1).
_GRID = 1.25


@dataclass(frozen=True, slots=True)
class SlotMap:
    """What the null depends on: `experts` E, and `weights[r, e]`, the share of expert e's rows that rank r computes (replicas share)."""

    experts: int
    weights: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, physical_to_logical: list[int], ranks: int) -> SlotMap:
        """Slots are split evenly over ranks in order; an expert with several slots splits its rows evenly among them."""
        slots = np.asarray(physical_to_logical, dtype=np.int64)
        if ranks < 1 or len(slots) % ranks:
            raise ValueError(f"{len(slots)} slots cannot be split evenly over {ranks} ranks")
        experts = int(slots.max()) + 1
        replicas = np.bincount(slots, minlength=experts)
        weights = np.zeros((ranks, experts))
        np.add.at(weights, (np.repeat(np.arange(ranks), len(slots) // ranks), slots), 1.0 / replicas[slots])
        return cls(experts, tuple(map(tuple, weights.tolist())))

    @property
    def matrix(self) -> Floats:
        return np.array(self.weights)


@dataclass(slots=True)
class ImbalanceNull:
    """Quantiles of max/mean under the null for one slot map and one k, computed once per batch size on a grid."""

    slots: SlotMap
    top_k: int
    quantile: float = QUANTILE
    seed: int = 0
    _grid: dict[int, tuple[float, float]] = field(default_factory=dict)

    def threshold(self, tokens: Ints) -> Floats:
        """[n] batch sizes -> [n] the quantile of max/mean; inf where a batch is empty (no imbalance can be seen in it)."""
        return np.where(tokens > 0, self._interpolated(tokens, 0), np.inf)

    def mean(self, tokens: Ints) -> Floats:
        """[n] batch sizes -> [n] the mean of max/mean: the unevenness that chance alone makes, and no placement cures."""
        return np.where(tokens > 0, self._interpolated(tokens, 1), 1.0)

    def _interpolated(self, tokens: Ints, which: int) -> Floats:
        position = np.log(np.maximum(tokens, 1)) / math.log(_GRID)
        low = np.floor(position).astype(np.int64)
        part = position - low
        return np.asarray((1 - part) * self._lookup(low, which) + part * self._lookup(low + 1, which))

    def _lookup(self, steps: Ints, which: int) -> Floats:
        unique, inverse = np.unique(steps, return_inverse=True)
        return np.array([self._at(int(step))[which] for step in unique])[inverse]

    def _at(self, step: int) -> tuple[float, float]:
        if step not in self._grid:
            drawn = simulate(self.slots, self.top_k, max(1, round(_GRID**step)), DRAWS, self.seed)
            self._grid[step] = float(np.quantile(drawn, self.quantile)), float(drawn.mean())
        return self._grid[step]


@lru_cache(maxsize=512)
def simulate(slots: SlotMap, top_k: int, tokens: int, draws: int = DRAWS, seed: int = 0) -> Floats:
    """[draws] max/mean rows per rank for `tokens` tokens of a uniform router."""
    rng = np.random.default_rng(seed)
    if tokens <= _EXACT_TOKENS:
        chosen = _exact_counts(rng, slots.experts, top_k, tokens, draws)
        rows = chosen @ slots.matrix.T
    else:
        rows = _normal_rows(rng, slots, top_k, tokens, draws)
    return np.asarray(rows.max(axis=1) / rows.mean(axis=1))


def _exact_counts(rng: np.random.Generator, experts: int, top_k: int, tokens: int, draws: int) -> Floats:
    """[draws, E] how often each expert is chosen when every token takes k distinct ones."""
    counts = np.zeros((draws, experts))
    row = np.arange(draws)[:, None]
    for _ in range(tokens):
        chosen = np.argpartition(rng.random((draws, experts)), top_k - 1, axis=1)[:, :top_k]
        counts[row, chosen] += 1.0
    return counts


def _normal_rows(rng: np.random.Generator, slots: SlotMap, top_k: int, tokens: int, draws: int) -> Floats:
    """[draws, R] rows per rank from the normal limit of the expert counts: N k / E each, sum fixed, finite-population correction."""
    experts = slots.experts
    variance = tokens * top_k / experts * (experts - top_k) / max(experts - 1, 1)
    noise = rng.standard_normal((draws, experts))
    noise -= noise.mean(axis=1, keepdims=True)
    counts = tokens * top_k / experts + math.sqrt(variance) * noise
    return np.maximum(counts, 0.0) @ slots.matrix.T
