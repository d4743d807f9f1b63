"""tail.first-shape: something is compiled, tuned or captured while serving, the first time a batch of a new shape comes along.

What is seen: single steps take many times as long as others with as many tokens, and never again for the same shape. A compilation on
one rank shows as a slow dispatch on the others (reference, S4 case 23; kernels that specialise on 1, multiples of 16 and the rest).

How it is told apart: engines that record compilations say when and how long: they are laid over the steps as pauses are. For others the
first step of every shape is compared with its repeats. A graph that is missing for a size makes *every* step of that size slow: that is
not this cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed
from playbooks.document import Evidence, Finding, Impact, Remedy
from playbooks.finding import finding, subject
from playbooks.measured import Ints
from playbooks.tail_latency.gc_pause import EXPLAINED, LEAST_STEPS, QUANTILE, TAIL, expected, explain
from playbooks.tail_latency.overlap import covered

ID = "tail.first-shape"

# "Only the first occurrence is slow" (reference section 2). Our choice: this many times the median of its repeats, of which there must
# be some, and in several shapes: one slow step that happened to be a first proves nothing.
SLOWER = 3.0
REPEATS = 4
SHAPES = 3

NEEDS = (
    Need(
        "steps",
        "step",
        LEAST_STEPS,
        "send traffic with `workbench traffic {url}`",
        count="count(DISTINCT step)",
        where="prefill_tokens + decode_tokens > 0",
    ),
)


@dataclass(frozen=True, slots=True)
class Firsts:
    """Shapes seen for the first time in the window's beginning of the run, and repeated: how many were slow; ns that they cost."""

    slow: int
    shapes: int
    excess: float
    worst: float


def compile_sql(case: Case) -> str:
    return (
        f"SELECT ts - {case.period.t0} AS ts, dur, rank FROM event WHERE kind = 'compile' AND ts BETWEEN {case.period.t0} "
        f"AND {case.period.t1} ORDER BY ts"
    )


def test(case: Case) -> Result:
    compiled = case.store.rows(compile_sql(case))
    if compiled:
        return _by_events(case, [(float(row["ts"]), float(row["ts"] + row["dur"])) for row in compiled])
    return _by_shapes(case)


def _by_events(case: Case, intervals: list[tuple[float, float]]) -> Result:
    wall = case.steps.wall
    share, tail = explain(wall, expected(case), covered(case, intervals))
    said = (
        f"{len(intervals)} compilations while serving; the latest {1 - QUANTILE:.0%} of steps take {tail:.2f}x what their tokens explain, "
        f"compiling is {share.value:.0%} of that excess"
    )
    if tail < TAIL or share.value < EXPLAINED:
        return passed(said, round(share.value, 4), EXPLAINED, "share of the tail's excess")
    total = sum(stop - start for start, stop in intervals)
    evidence = case.sql(f"SELECT sum(dur) / 1e6 AS compiled FROM ({compile_sql(case)})", 0.0, "ms", "compiling in the window")
    found = _finding(case, said, evidence, share.value, total / len(intervals), 0.95)
    return Result("fail", said, round(share.value, 4), EXPLAINED, "share of the tail's excess", (found,))


def _by_shapes(case: Case) -> Result:
    found = firsts(case)
    said = (

        f"{found.slow} of {found.shapes} shapes that came back were over {SLOWER:g}x as slow the first time; "
        "nothing recorded a compilation"

    )
    if found.slow < SHAPES or found.slow < 0.5 * found.shapes:
        return passed(said, found.slow, SHAPES, "shapes")
    evidence = case.derived(
        "first_shape.firsts on table step",
        round(found.worst, 3),
        1.0,
        "ratio",
        "worst first step of a shape over the median of its repeats",
    )
    share = found.excess / float(case.steps.wall.sum())
    made = _finding(case, said, evidence, share, found.excess / found.slow, 0.7)
    return Result("warn", said, found.slow, SHAPES, "shapes", (made,))


def firsts(case: Case) -> Firsts:
    """A shape is new if no earlier step of the run had it; padding to powers of two is what engines do."""
    steps, wall = case.steps, case.steps.wall
    shape = shapes(np.nanmax(steps["prefill_tokens"], axis=1), np.nanmax(steps["decode_tokens"], axis=1))
    query = (
        "SELECT max(prefill_tokens) AS prefill, max(decode_tokens) AS decode FROM step "
        f"WHERE step < {case.period.first} AND prefill_tokens + decode_tokens > 0 GROUP BY step"
    )
    before = case.store.query(query)
    columns = (np.asarray(before.column(name).to_numpy(zero_copy_only=False), dtype=np.float64) for name in ("prefill", "decode"))
    known = set(shapes(*columns).tolist()) if before.num_rows else set()
    slow, number, excess, worst = 0, 0, 0.0, 1.0
    for one in np.unique(shape):
        places = np.flatnonzero(shape == one)
        if len(places) <= REPEATS or int(one) in known:
            continue
        usual = float(np.median(wall[places[1:]]))
        ratio = float(wall[places[0]]) / usual
        number, worst = number + 1, max(worst, ratio)
        if ratio >= SLOWER:
            slow, excess = slow + 1, excess + float(wall[places[0]]) - usual
    return Firsts(slow, number, excess, worst)


def shapes(prefill: np.ndarray, decode: np.ndarray) -> Ints:
    """[n] one number for the sizes of a step, each rounded up to a power of two."""
    sizes = [np.ceil(np.log2(np.maximum(values, 0) + 1)).astype(np.int64) for values in (prefill, decode)]
    return np.asarray(64 * sizes[0] + sizes[1])


def _finding(case: Case, said: str, evidence: Evidence, share: float, each: float, score: float) -> Finding:
    return finding(
        case,
        ID,
        "error" if score > 0.9 else "warning",
        subject("setting", "warm-up"),
        "New batch shapes are compiled while serving",
        f"{said[0].upper()}{said[1:]}.",
        score,
        "established" if score > 0.9 else "hypothesis",
        impact=Impact(metric="slow steps", value=round(each / 1e6, 3), unit="ms", share=round(share, 4), alone=round(each / 1e6, 3)),
        evidence=(evidence,),
        remedy=(
            Remedy(
                text="Warm every shape up before taking requests, or keep the compile cache between starts; pad batches to fewer shapes.",
                risk="low: the start takes longer",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "New shapes are compiled while serving", mandatory=False, cost=27, test=test, needs=NEEDS, page=__doc__ or "")
