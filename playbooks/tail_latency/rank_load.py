"""How the requests, and the tokens they attend to, are spread over the data-parallel ranks, and what an uneven spread costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.attribution.bootstrap import Interval, ratio
from playbooks.case import Case
from playbooks.measured import Floats

BLOCKS = 6


@dataclass(frozen=True, slots=True)
class Spread:
    """[R] mean of a load by rank; `column` of the highest, its value over the mean, and the share of blocks of time in which it leads."""

    mean: Floats
    column: int
    ratio: float
    persistent: float


@dataclass(frozen=True, slots=True)
class RankLoad:
    """`requests` running and waiting, `context`: cached tokens attended to; `cost`: share of the step taken by uneven context."""

    requests: Spread
    context: Spread
    cost: Interval
    cost_ns: float


def measure(case: Case) -> RankLoad:
    if "rank-load" not in case.memo:
        case.memo["rank-load"] = _measure(case)
    found: RankLoad = case.memo["rank-load"]
    return found


def _measure(case: Case) -> RankLoad:
    steps = case.steps
    excess = case.layers.per_step(context_excess(case)) if case.layers.steps else np.zeros(0)
    cost = ratio(excess, case.step_time) if len(excess) else Interval(0.0, 0.0, 0.0)
    return RankLoad(
        requests=spread(np.where(case.leads, steps["running"] + steps["waiting"], np.nan)),
        context=spread(steps["context_tokens"]),
        cost=cost,
        cost_ns=float(excess.mean()) if len(excess) else 0.0,
    )


def context_excess(case: Case) -> Floats:
    """[n] ns by which the last rank's attention would be earlier with the context spread evenly, by the fitted cost of the attention."""
    tokens, context = case.feature("tokens_in"), case.feature("context")
    model = case.attention_cost(case.basis)
    work = model.work((tokens, context))
    part = np.where(work > 0, model.coefficients[2] * context, 0.0)
    even = work - part + np.nanmean(part, axis=1, keepdims=True)
    return np.asarray(np.maximum(np.nanmax(work, axis=1) - np.nanmax(even, axis=1), 0.0))


def spread(load: Floats) -> Spread:
    """`load` [S, R] over time; NaN throughout for a rank that is not counted."""
    counted = np.isfinite(load).any(axis=0)
    held = np.where(counted, load, 0.0)
    mean = np.nanmean(held, axis=0)
    column = int(np.argmax(mean))
    parts = [np.nanmean(part, axis=0) for part in np.array_split(held, min(BLOCKS, len(load)))]
    leads = float(np.mean([int(np.argmax(part)) == column for part in parts]))
    return Spread(mean, column, float(mean[column] / mean[counted].mean()) if mean.any() else 1.0, leads)


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds a rank's context: the share of it in long requests, how many there are, and the longest and the typical length."""

    share: float
    number: int
    longest: int
    typical: int


def holders(case: Case, rank: int, times: float) -> Holders:
    """Long: `times` the median length of all requests. A request's part of the context is its length times how long it lived."""
    rows = case.store.rows(
        "SELECT rank, input_tokens + coalesce(output_tokens, 0) AS length, dur FROM request "
        f"WHERE input_tokens IS NOT NULL AND ts BETWEEN {case.period.t0} AND {case.period.t1}"
    )
    if not rows:
        return Holders(0.0, 0, 0, 0)
    lengths = np.array([float(row["length"]) for row in rows])
    held = lengths * np.array([float(row["dur"]) for row in rows])
    mine = np.array([row["rank"] == rank for row in rows])
    long = lengths >= times * np.median(lengths)
    total = held[mine].sum()
    share = float(held[mine & long].sum() / total) if total > 0 else 0.0
    return Holders(share, int((mine & long).sum()), int(lengths[mine].max(initial=0)), int(np.median(lengths)))
