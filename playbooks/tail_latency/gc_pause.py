"""tail.gc-pause: one process collects garbage, and all ranks wait for it.

What is seen: most steps are normal, some are much longer; one rank is late in them, not always the same one, in whatever segment the
collection happened to start. The pause grows with the number of live Python objects: growth with uptime means a leak.

How it is told apart: pauses are recorded as events by gc.callbacks, so the long steps are compared with themselves less their pauses.
A step is long if it takes longer than its tokens explain: a large batch is no tail. If the tail goes away with the pauses they are
its cause; a host that takes cores away makes a tail that stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.attribution.bootstrap import Interval, block_weights, quantiles
from playbooks.attribution.rates import fit
from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, listed, subject
from playbooks.measured import Floats
from playbooks.tail_latency.overlap import covered

ID = "tail.gc-pause"

# Reference section 2: pause >= 0.5 x the excess of the slow step. Here: of the excess of all slow steps together.
EXPLAINED = 0.50
# A tail worth the name: slow steps over the typical one. Below it there is nothing to explain (our choice).
TAIL = 1.3
QUANTILE = 0.95
LEAST_STEPS = 30
# Pauses below this share of the typical step cannot make a tail; they are summed, not blamed.
SHORT = 0.1

NEEDS = (
    Need(
        "steps",
        "step",
        LEAST_STEPS,
        "send traffic with `workbench traffic {url}`",
        count="count(DISTINCT step)",
        where="prefill_tokens + decode_tokens > 0",
    ),
    Need(
        "garbage collections",
        "event",
        1,
        "serve with telemetry on: `workbench serve` hooks gc.callbacks",
        where="kind IN ('gc', 'gc_short')",
        time="",
    ),
)


@dataclass(frozen=True, slots=True)
class Pauses:
    """`paused` [S] ns of each step spent in collections, at most one rank's at a time; `by_rank` ns; `generations` seen."""

    paused: Floats
    by_rank: dict[int, int]
    number: int
    longest: int


def test(case: Case) -> Result:
    wall = case.steps.wall
    pauses = overlap(case)
    if not pauses.number:
        return passed("no garbage collection of 200 us or longer in the window", 0.0, EXPLAINED, "share of the tail's excess")
    explained, tail = explain(wall, expected(case), pauses.paused)
    typical = float(np.median(wall))
    said = (
        f"the latest {1 - QUANTILE:.0%} of steps take {tail:.2f}x what their tokens explain; pauses are "
        f"{explained.value:.0%} of that excess"
    )
    if tail < TAIL or explained.value < EXPLAINED or pauses.longest < SHORT * typical:
        return passed(said, round(explained.value, 4), EXPLAINED, "share of the tail's excess")
    outcome = "fail" if explained.low >= EXPLAINED / 2 else "warn"
    found = _finding(case, pauses, explained, tail, outcome == "fail")
    return Result(
        "fail" if outcome == "fail" else "warn", said, round(explained.value, 4), EXPLAINED, "share of the tail's excess", (found,)
    )


def overlap(case: Case) -> Pauses:
    """Collections laid over the steps. Pauses of several ranks in one step overlap in time: the union counts."""
    t0 = case.period.t0
    rows = case.store.rows(
        f"SELECT ts - {t0} AS ts, dur, rank FROM event WHERE kind = 'gc' AND rank IS NOT NULL "
        f"AND ts BETWEEN {t0} AND {case.period.t1} ORDER BY ts"
    )
    by_rank: dict[int, int] = {}
    for row in rows:
        by_rank[int(row["rank"])] = by_rank.get(int(row["rank"]), 0) + int(row["dur"])
    paused = covered(case, ((float(row["ts"]), float(row["ts"] + row["dur"])) for row in rows))
    return Pauses(paused, by_rank, len(rows), max((int(row["dur"]) for row in rows), default=0))


def expected(case: Case) -> Floats:
    """[S] ns that a step takes for its tokens: the rank with the most of them, and their context, decide."""
    steps = case.steps
    tokens = np.nanmax(steps["prefill_tokens"] + steps["decode_tokens"], axis=1)[:, None]
    features = (tokens, np.nanmax(steps["context_tokens"], axis=1)[:, None])
    return np.asarray(fit(steps.wall[:, None], features).work(features)[:, 0])


def explain(wall: Floats, usual: Floats, paused: Floats) -> tuple[Interval, float]:
    """Share of the slow steps' excess over what they usually take that goes away without the pauses, and slow over usual."""
    late = wall - usual
    slow = late >= np.quantile(late, QUANTILE)
    excess = np.where(slow, np.maximum(late, 0.0), 0.0)
    gone = np.where(slow, np.minimum(paused, excess), 0.0)
    if excess.sum() <= 0:
        return Interval(0.0, 0.0, 0.0), 1.0
    weights = block_weights(len(wall))
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = (weights @ gone) / (weights @ excess)
    return quantiles(float(gone.sum() / excess.sum()), drawn), float(wall[slow].sum() / max(usual[slow].sum(), 1.0))


def _finding(case: Case, pauses: Pauses, explained: Interval, tail: float, sure: bool) -> Finding:
    ranks = sorted(pauses.by_rank, key=lambda rank: -pauses.by_rank[rank])
    main = [rank for rank in ranks if pauses.by_rank[rank] >= 0.2 * pauses.by_rank[ranks[0]]]
    window = f"kind = 'gc' AND rank IS NOT NULL AND ts BETWEEN {case.period.t0} AND {case.period.t1}"
    wall = case.steps.wall
    slow = wall >= np.quantile(wall, QUANTILE)
    gained = float(np.minimum(pauses.paused, wall)[slow].mean() / 1e6)
    grows = case.store.rows(f"SELECT regr_slope(dur, ts) * 3.6e12 / avg(dur) AS per_hour FROM event WHERE {window} AND dur > 1000000")[0][
        "per_hour"
    ]
    growth = (
        f" The pause grows by {float(grows):.0%} an hour: objects are leaking."
        if grows is not None and float(grows) > 0.5 and pauses.number >= 20
        else ""
    )
    return finding(
        case,
        ID,
        "error" if sure else "warning",
        subject("rank", main[0], ranks=sorted(main)),
        f"Garbage collections of {listed(sorted(main), 'rank')} stop every rank for up to {pauses.longest / 1e6:.0f} ms",
        f"The latest {1 - QUANTILE:.0%} of steps take {tail:.1f}x what their tokens explain, and "
        f"{explained.value:.0%} of that excess is Python's garbage "
        f"collector in {listed(sorted(main), 'rank')}.{growth}",
        0.95 if sure else 0.7,
        "established" if sure else "supported",
        impact=Impact(metric="slow steps", value=round(gained, 3), unit="ms", share=round(explained.value, 4), alone=round(gained, 3)),
        evidence=(
            case.sql(f"SELECT max(dur) / 1e6 AS longest FROM event WHERE {window}", None, "ms", "longest collection"),
            case.sql(f"SELECT count(*) AS n FROM event WHERE {window}", None, "collections", "listed ones (200 us and longer)"),
            case.derived(
                "tail_latency.gc_pause.explain on tables step and event",
                round(explained.value, 4),
                EXPLAINED,
                "share of the tail's excess",
                f"90 % interval [{explained.low:.2f}, {explained.high:.2f}]",
            ),
        ),
        remedy=(
            Remedy(
                text=(
                    "Freeze the heap after warm-up (gc.freeze) and collect at idle moments; if the pause grows with uptime, find the leak."
                ),
                config={"gc": "freeze after warm-up"},
                risk="low: cycles made after the freeze are still collected",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "Garbage collections stop all ranks", mandatory=False, cost=25, test=test, needs=NEEDS, page=__doc__ or "")
