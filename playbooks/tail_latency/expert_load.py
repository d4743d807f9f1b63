"""What is measured of the expert load of a window: rows against the null, their cost, who is last, and what moving experts would save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from playbooks.attribution import bootstrap
from playbooks.attribution.expert_split import Split, split
from playbooks.attribution.imbalance_null import ImbalanceNull, SlotMap
from playbooks.attribution.placement_gain import Gain, gain
from playbooks.case import Case
from playbooks.expert_counts import ExpertCounts
from playbooks.measured import Floats, Ints
from playbooks.tail_latency.expert_limits import ABOVE_NULL, NEARLY


@dataclass(frozen=True, slots=True)
class LayerLoad:
    """One layer.

    `above`: share of its work in steps above the null; `ratio`: sum of max over sum of mean rows, `null` the same of its p99; `excess`
    ns that the hottest rank takes over the mean, `beyond` ns of it that chance does not explain; `gain` of moving experts.
    """

    layer: int
    above: float
    null: float
    ratio: float
    excess: float
    beyond: float
    hot_rank: int
    gain: Gain

    @property
    def persistent(self) -> float:
        """Part of the step-by-step excess that is still there when rows are counted over seconds."""
        return float(np.clip((self.gain.now - 1.0) / max(self.ratio - 1.0, 1e-9), 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """The whole picture. Arrays are [n] over (step, layer); `flagged` marks those of layers above the null."""

    counts: ExpertCounts
    layers: tuple[LayerLoad, ...]
    flagged: np.ndarray
    parts: Split
    share: bootstrap.Interval
    last_wall: float
    last_cpu: float | None
    by_active: float

    @property
    def uneven(self) -> tuple[LayerLoad, ...]:
        return tuple(one for one in self.layers if one.above > ABOVE_NULL)

    def _part(self, of: Callable[[LayerLoad], float]) -> float:
        """Mean of a property of the uneven layers, weighed by their excess."""
        total = sum(one.excess for one in self.uneven)
        return sum(one.excess * of(one) for one in self.uneven) / total if total > 0 else 0.0

    @property
    def beyond_chance(self) -> float:
        """Share of the step taken by excess that a uniform router would not have."""
        return self.share.value * self._part(lambda one: max(0.0, one.beyond / one.excess) if one.excess > 0 else 0.0)

    @property
    def persistent(self) -> float:
        """Share of the step taken by excess that persists over seconds."""
        return self.share.value * self._part(lambda one: one.persistent)

    @property
    def avoidable(self) -> float:
        """Share of the step that moving experts would save."""
        return self.share.value * self._part(lambda one: one.persistent * one.gain.recoverable)

    @property
    def recoverable(self) -> float:
        """Share of the persistent excess that moving experts would remove."""
        return self.avoidable / self.persistent if self.persistent > 0 else 0.0


def measure(case: Case, counts: ExpertCounts) -> ExpertLoad:
    layers = case.layers
    rows = layers["tokens_routed"]
    ratio = np.nanmax(rows, axis=1) / np.nanmean(rows, axis=1)
    null, chance = _null(case, counts)
    work = case.expert_cost(case.basis).work((rows, layers["active"]))
    parts = split(work, np.nan_to_num(case.expert_cost(case.basis).slowness, nan=1.0))
    verdicts = tuple(
        _layer(case, counts, number, _Ratios(ratio, null, chance), parts) for number in counts.layers if (layers.layer == number).any()
    )
    flagged = np.isin(layers.layer, [one.layer for one in verdicts if one.above > ABOVE_NULL])
    weights = np.where(flagged, np.maximum(parts.imbalance_last, 0.0), 0.0)
    excess = layers.per_step(weights)
    cpu = layers["experts_cpu"]
    return ExpertLoad(
        counts=counts,
        layers=verdicts,
        flagged=flagged,
        parts=parts,
        share=bootstrap.ratio(excess, case.step_time),
        last_wall=_agreement(case.frontier.last, rows, weights),
        last_cpu=_agreement(_argmax(cpu), rows, weights) if np.isfinite(cpu).any() else None,
        by_active=_by_active(case, flagged),
    )


@dataclass(frozen=True, slots=True)
class _Ratios:
    """[n] max/mean as it is, and the null's 99th percentile and mean for the same tokens."""

    measured: Floats
    null: Floats
    chance: Floats


def _null(case: Case, counts: ExpertCounts) -> tuple[Floats, Floats]:
    """[n] 99th percentile and mean of max/mean for the tokens of each (step, layer) under its own slot map."""
    layers = case.layers
    tokens = np.nansum(layers["tokens_in"], axis=1)
    null, chance = np.full(len(tokens), np.inf), np.ones(len(tokens))
    for number in counts.layers:
        here = layers.layer == number
        if not here.any():
            continue
        top_k = max(1, round(float(np.nansum(layers["tokens_routed"][here]) / max(tokens[here].sum(), 1.0))))
        slots = SlotMap.of(list(counts.maps[number]), counts.ranks)
        model, sizes = _model(case, slots, top_k), tokens[here].astype(np.int64)
        null[here], chance[here] = model.threshold(sizes), model.mean(sizes)
    return null, chance


def _model(case: Case, slots: SlotMap, top_k: int) -> ImbalanceNull:
    """Layers whose ranks own equally many experts share one null: only the sizes matter to a uniform router."""
    sizes = tuple(sorted(round(sum(owned), 6) for owned in slots.weights))
    model: ImbalanceNull = case.memo.setdefault(f"null-{slots.experts}-{top_k}-{sizes}", ImbalanceNull(slots, top_k))
    return model


def _layer(case: Case, counts: ExpertCounts, number: int, ratios: _Ratios, parts: Split) -> LayerLoad:
    here = case.layers.layer == number
    ratio, null, chance = ratios.measured[here], ratios.null[here], ratios.chance[here]
    rows = case.layers["tokens_routed"][here]
    hottest = _argmax(rows)
    cost = np.bincount(hottest, weights=np.maximum(parts.imbalance_last[here], 0.0), minlength=rows.shape[1])
    mean = np.nanmean(rows, axis=1)
    return LayerLoad(
        layer=number,
        above=float(np.average(ratio > null, weights=mean)),
        null=float(np.average(null, weights=mean)),
        ratio=float(np.nanmax(rows, axis=1).sum() / mean.sum()),
        excess=float(parts.imbalance_last[here].sum()),
        beyond=float((parts.imbalance_last[here] * (ratio - chance) / np.maximum(ratio - 1.0, 1e-9)).sum()),
        hot_rank=case.layers.ranks[int(np.argmax(cost))],
        gain=gain(counts.counts[number], counts.maps[number], counts.ranks),
    )


def _argmax(values: Floats) -> Ints:
    return np.asarray(np.argmax(np.where(np.isnan(values), -np.inf, values), axis=1))


def _agreement(last: Ints, rows: Floats, weights: Floats) -> float:
    if not weights.any():
        return 0.0
    most = np.nanmax(rows, axis=1)
    return float(np.average(rows[np.arange(len(rows)), last] >= NEARLY * most, weights=weights))


def _by_active(case: Case, flagged: np.ndarray) -> float:
    """Share of the hottest ranks' modelled cost that follows active experts rather than rows: near 1 in small decode batches."""
    _, per_row, per_active = case.expert_cost(case.basis).coefficients
    rows, active = np.nansum(case.layers["tokens_routed"][flagged]), np.nansum(case.layers["active"][flagged])
    total = per_row * rows + per_active * active
    return float(per_active * active / total) if total > 0 else 0.0
