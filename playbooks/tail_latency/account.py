"""tail.account: where the time of a step goes, all causes together, with intervals and what is left over.

This is no cause: it fails never. It says what an ideal step would take, what each cause adds to it (uneven experts, slow ranks, pauses,
a late host, uneven bytes, lost bandwidth), what would be gained if only that cause were mended and if it were mended last, what the
latest steps have more of than typical ones, and the residual. More than a fifth left over means that the cause is not among these.

How: increments of the frontier add up to the layer's time; the computing segments are shared between their causes by the Shapley value
(attribution/shapley.py), the collectives through the tiny one (attribution/wire.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.attribution.bootstrap import Interval, ratio
from playbooks.attribution.layer_time import CAUSES, IMBALANCE, PAUSE, SPEED, Segment, computing
from playbooks.attribution.rates import block_slowness, mean_slowness
from playbooks.attribution.shapley import Share, shares
from playbooks.attribution.tail import Tail, compare
from playbooks.attribution.wire import split
from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, passed, skipped
from playbooks.measured import Floats
from playbooks.tail_latency import request_account
from playbooks.tail_latency.straggler_rank import over_others, undisturbed

ID = "tail.account"

# Reference section 3.3: more than this left over is "unexplained".
UNEXPLAINED = 0.20
LEAST_STEPS = 30
# A rank counts as slow in the account from here on, if it is clear of its own scatter: below the line of tail.straggler-rank, because
# small slowness is attributed before it is a fault. Our choice.
SLOWER = 1.05
CLEAR = 4.0
BLOCKS = 6

NEEDS = (
    Need(
        "detailed steps",
        "layer",
        LEAST_STEPS,
        "send traffic with `workbench traffic {url}`, or ask for a window of full detail: POST /control/window",
        count="count(DISTINCT step)",
        where="tokens_routed > 0",
    ),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One cause, ns a step: mean with its interval; `alone` and `last` for causes that can hide one another; `steps` [S]."""

    mean: Interval
    steps: Floats
    alone: float | None = None
    last: float | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """`step`: mean ns of a step; parts by name, `ideal` and `residual` among them; they add up. `undetermined`: parts that are not told."""

    step: float
    parts: dict[str, Part]
    undetermined: dict[str, str]
    tail: Tail

    @property
    def lost(self) -> float:
        """Share of the step that the causes take."""
        return sum(self.parts[name].mean.value for name in CAUSES) / self.step

    @property
    def residual(self) -> float:
        return abs(self.parts["residual"].mean.value) / self.step


def account(case: Case) -> Account:
    if "account" not in case.memo:
        case.memo["account"] = _account(case)
    found: Account = case.memo["account"]
    return found


def _account(case: Case) -> Account:
    layers = case.layers
    segments = _segments(case)
    split_shares = shares(lambda present: computing(segments, present), CAUSES)
    increments = case.frontier
    rows = layers["tokens_routed"]
    wire = split(
        increments.of("exchange"),
        increments.of("dispatch") + increments.of("combine"),
        np.nanmax(rows, axis=1),
        np.nanmean(rows, axis=1),
        case.contended,
    )
    ideal = computing(segments, frozenset()) + wire.ideal
    costs = {name: _part(case, share.value, share) for name, share in split_shares.items()}
    costs |= {"host": _part(case, wire.host), "uneven bytes": _part(case, wire.uneven)}
    undetermined = {}
    if wire.bandwidth is None:
        undetermined["bandwidth"] = wire.reason
    else:
        costs["bandwidth"] = _part(case, wire.bandwidth)
    outside = np.maximum(case.step_wall - layers.per_step(increments.total), 0.0)
    parts = {"ideal": _part(case, ideal), "outside the layers": _of_steps(outside)} | costs
    left = case.step_wall - np.sum([part.steps for part in parts.values()], axis=0)
    parts["residual"] = _of_steps(left)
    tail = compare(case.step_wall, {name: part.steps for name, part in parts.items()})
    return Account(float(case.step_wall.mean()), parts, undetermined, tail)


def _part(case: Case, values: Floats, share: Share | None = None) -> Part:
    steps = case.layers.per_step(values)
    if share is None:
        return _of_steps(steps)
    alone, last = (float(case.layers.per_step(one).mean()) for one in (share.alone, share.last))
    return Part(ratio(steps, np.ones(len(steps))), steps, alone, last)


def _of_steps(steps: Floats) -> Part:
    return Part(ratio(steps, np.ones(len(steps))), steps)


def _segments(case: Case) -> tuple[Segment, Segment]:
    layers = case.layers
    paused = pauses(case)
    attention_work = case.attention_cost("wall").work((case.feature("tokens_in"), case.feature("context")))
    expert_work = case.expert_cost("wall").work((layers["tokens_routed"], layers["active"]))
    quiet = undisturbed(case)
    slow = slowness(layers["attention"][quiet], attention_work[quiet]), slowness(layers["experts"][quiet], expert_work[quiet])
    return (
        Segment(layers["attention"] + layers["router"], paused[0], slow[0]),
        Segment(layers["experts"], paused[1], slow[1], expert_work),
    )


def slowness(cost: Floats, work: Floats) -> Floats:
    """[R] over the median of the others, 1 for ranks that are not clearly slower."""
    if not len(cost):
        return np.ones(cost.shape[1])
    found = over_others(mean_slowness(cost, work))
    blocks = np.log(over_others(block_slowness(cost, work, BLOCKS)))
    error = np.nanstd(blocks, axis=0) / np.sqrt(max(1, len(blocks)))
    clear = (found > SLOWER) & (np.log(np.maximum(found, 1e-9)) > CLEAR * np.maximum(error, 0.005))
    return np.where(clear, found, 1.0)


def pauses(case: Case) -> tuple[Floats, Floats]:
    """[n, R] ns of garbage collection inside the attention with its router, and inside the experts."""
    layers, t0 = case.layers, case.period.t0
    begin = layers["ts"]
    windows = [(begin, begin + layers["attention"] + layers["router"])]
    until = windows[0][1] + layers["exchange"] + layers["dispatch"]
    windows.append((until, until + layers["experts"]))
    inside = [np.zeros(begin.shape), np.zeros(begin.shape)]
    columns = {rank: column for column, rank in enumerate(layers.ranks)}
    for row in case.store.rows(
        f"SELECT ts - {t0} AS ts, dur, rank FROM event WHERE kind = 'gc' AND rank IS NOT NULL AND ts BETWEEN {t0} AND {case.period.t1}"
    ):
        column = columns.get(int(row["rank"]))
        if column is None:
            continue
        for paused, (start, stop) in zip(inside, windows, strict=True):
            both = np.minimum(stop[:, column], row["ts"] + row["dur"]) - np.maximum(start[:, column], row["ts"])
            paused[:, column] += np.nan_to_num(np.maximum(both, 0.0))
    return inside[0], inside[1]


def test(case: Case) -> Result:
    if case.layers.steps < LEAST_STEPS:
        return skipped(f"only {case.layers.steps} detailed steps under placement {case.placement}, {LEAST_STEPS} are needed")
    stages = f"SELECT count(DISTINCT stage) AS n FROM layer WHERE ts BETWEEN {case.period.t0} AND {case.period.t1}"
    if case.store.rows(stages)[0]["n"] > 1:
        return not_applicable("pipeline stages overlap in time: their layers do not add up to a step (see tail.pipeline-bubble)")
    found = account(case)
    words = in_words(found)
    if requests := request_account.account(case, found.lost):
        words += f"; {request_account.in_words(requests)}"
    return passed(words, round(found.residual, 4), UNEXPLAINED, "share of the step left over")


def in_words(found: Account) -> str:
    ms = {name: [1e-6 * value for value in (part.mean.value, part.mean.low, part.mean.high)] for name, part in found.parts.items()}
    parts = " + ".join(f"{name} {value:.2f} [{low:.2f}, {high:.2f}]" for name, (value, low, high) in ms.items())
    words = f"a step of {found.step / 1e6:.1f} ms = {parts} ms"
    for name, reason in found.undetermined.items():
        words += f"; {name}: {reason}"
    if found.tail.determined:
        more = sorted(found.tail.parts, key=lambda name: -found.tail.parts[name].value)[:3]
        words += f"; the slowest 5 % take {found.tail.excess / 1e6:.1f} ms more, first {', '.join(more)}"
    if found.residual > UNEXPLAINED:
        words += "; unexplained: more than a fifth is left over"
    return words


__all__ = ["CHECK", "IMBALANCE", "PAUSE", "SPEED", "account", "in_words"]

CHECK = Check(ID, "Where the time of a step goes", mandatory=False, cost=45, test=test, needs=NEEDS, page=__doc__ or "")
