"""The two numbers by which a remedy of the expert load is judged, with their interval, in one stretch of traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from playbooks.attribution.bootstrap import Interval, change, ratio
from playbooks.document import Improvement
from playbooks.measured import Floats, Layers

# Fewer detailed steps than this decide nothing (the same number as the checks want).
LEAST_STEPS = 30
# A change smaller than this is none: two periods of equal traffic differ by about as much (our choice).
SMALLEST = 0.02


@dataclass(frozen=True, slots=True)
class Sample:
    """By detailed step: rows of the hottest and of the mean rank, summed over layers; ns of the costliest rank; rows of all ranks."""

    placement: int
    basis: str
    hottest: Floats
    mean: Floats
    cost: Floats
    rows: Floats

    @property
    def steps(self) -> int:
        return len(self.rows)

    @property
    def imbalance(self) -> Interval:
        return ratio(self.hottest, self.mean)

    @property
    def ns_per_row(self) -> Interval:
        return ratio(self.cost, self.rows)

    def document(self) -> dict[str, Any]:
        """What `applied[].before` and `.after` hold."""
        imbalance, cost = self.imbalance, self.ns_per_row
        return {
            "placement": self.placement,
            "steps": self.steps,
            "imbalance": round(imbalance.value, 4),
            "imbalance_interval": [round(imbalance.low, 4), round(imbalance.high, 4)],
            "expert_ns_per_row": round(cost.value, 2),
            "expert_ns_per_row_interval": [round(cost.low, 2), round(cost.high, 2)],
            "basis": self.basis,
        }


def sample(layers: Layers, placement: int) -> Sample:
    """Of the detailed layers of one placement. CPU time where the ranks record it: it does not depend on what else the host does."""
    layers = _complete(layers)
    cpu = layers["experts_cpu"]
    basis = "cpu" if len(cpu) and np.isfinite(cpu).all() else "wall"
    cost = cpu if basis == "cpu" else layers["experts"]
    rows = layers["tokens_routed"]
    if not len(rows):
        empty = np.zeros(0)
        return Sample(placement, basis, empty, empty, empty, empty)
    return Sample(
        placement,
        basis,
        layers.per_step(np.nanmax(rows, axis=1)),
        layers.per_step(np.nanmean(rows, axis=1)),
        layers.per_step(np.nanmax(cost, axis=1)),
        layers.per_step(np.nansum(rows, axis=1)),
    )


def _complete(layers: Layers) -> Layers:
    """Without the steps of which some rank's rows have not arrived: their busiest rank is not known."""
    missing = np.isnan(layers["tokens_routed"]).any(axis=1)
    return layers.select(~np.isin(layers.key, layers.key[missing])) if missing.any() else layers


def judge(before: Sample, after: Sample) -> tuple[Improvement, str]:
    """improved: imbalance and cost per row both fell, beyond doubt. worse: the cost rose. unchanged: one of them demonstrably did not move.

    Where the interval does not decide, undetermined.
    """
    if min(before.steps, after.steps) < LEAST_STEPS:
        return "undetermined", f"only {before.steps} detailed steps before and {after.steps} after; {LEAST_STEPS} are needed"
    if before.basis != after.basis:
        return "undetermined", f"expert time is known by {before.basis} before and by {after.basis} after: not comparable"
    cost = change((before.cost, before.rows), (after.cost, after.rows))
    uneven = change((before.hottest, before.mean), (after.hottest, after.mean))
    said = (
        f"imbalance {uneven.value:+.0%} [{uneven.low:+.0%}, {uneven.high:+.0%}], expert time per routed row {cost.value:+.0%} "
        f"[{cost.low:+.0%}, {cost.high:+.0%}] ({before.basis} basis)"
    )
    if cost.high < -SMALLEST and uneven.high < 0:
        return "improved", said
    if cost.low > SMALLEST:
        return "worse", said
    if uneven.low > -SMALLEST or (cost.low > -SMALLEST and cost.high < SMALLEST):
        return "unchanged", said
    return "undetermined", said
