"""tail.expert-swap: experts that a step needs are not in memory, and the step waits until they are read.

What is seen: steps take several times what their tokens explain; decoding of a small batch suffers most, because it reads whole experts
for a few rows. Measured elsewhere: decoding 12 times slower than with all experts resident, at 8 to 18 % hits (reference, S4 case 27).

How it is told apart: the ranks record when a step stood still for an expert (events `expert_tier`). That time is held against the time of
the same rank's steps. What was read while a step computed something else is no stall, however many bytes it was.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, passed, skipped
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, listed, subject

ID = "tail.expert-swap"

# Of the steps' time. Reference section 2 asks for half of a step's excess; a stall is all excess, so half of the excess is a third of the
# time of a step that takes three times as long as it should.
STALLED = 1 / 3
NOTED = 0.10  # our choice: below it nobody feels it
LEAST_WINDOWS = 3  # windows of a second: fewer are the tiers filling up

NEEDS = (Need("steps", "step", 30, "send traffic with `workbench traffic {url}`", count="count(DISTINCT step)"),)


@dataclass(frozen=True, slots=True)
class Swapped:
    """One rank: windows, bytes read, share of the steps' time stalled, of needed experts found in memory, of reading hidden."""

    rank: int
    windows: int
    nbytes: int
    stalled: float
    stall_ms: float  # a step
    hits: float
    hidden: float | None
    frames: int
    experts: int
    frame_bytes: int


def sql(case: Case) -> str:
    """Windows of the tiers summed by rank, beside the time of the rank's steps."""
    window = f"BETWEEN {case.period.t0} AND {case.period.t1}"
    return (
        "WITH tiers AS (SELECT rank, (attrs ->> 'needed')::BIGINT AS needed, (attrs ->> 'misses')::BIGINT AS misses, "
        "(attrs ->> 'miss_bytes')::BIGINT AS nbytes, (attrs ->> 'stall_ns')::BIGINT AS stall, (attrs ->> 'fetch_ns')::BIGINT AS reading, "
        "(attrs ->> 'step_first')::BIGINT AS lo, (attrs ->> 'step_last')::BIGINT AS hi, (attrs ->> 'frames')::BIGINT AS frames, "
        "(attrs ->> 'experts')::BIGINT AS experts, (attrs ->> 'frame_bytes')::BIGINT AS frame_bytes "
        f"FROM event WHERE kind = 'expert_tier' AND ts + dur {window}), "
        "timed AS (SELECT t.rank, t.lo, sum(s.dur) AS wall, count(*) AS steps FROM tiers t JOIN step s "
        f"ON s.rank = t.rank AND s.step BETWEEN t.lo AND t.hi AND s.ts {window} GROUP BY t.rank, t.lo) "
        "SELECT rank, count(*) AS windows, sum(nbytes) AS nbytes, sum(stall) AS stall, sum(reading) AS reading, sum(needed) AS needed, "
        "sum(misses) AS misses, sum(wall) AS wall, sum(steps) AS steps, max(frames) AS frames, max(experts) AS experts, "
        "max(frame_bytes) AS frame_bytes FROM tiers JOIN timed USING (rank, lo) GROUP BY rank ORDER BY sum(stall) / sum(wall) DESC"
    )


def measure(case: Case) -> list[Swapped]:
    """Ranks with experts in tiers, most stalled first."""
    return [
        Swapped(
            rank=int(row["rank"]),
            windows=int(row["windows"]),
            nbytes=int(row["nbytes"]),
            stalled=min(1.0, float(row["stall"]) / max(float(row["wall"]), 1.0)),
            stall_ms=float(row["stall"]) / max(int(row["steps"]), 1) / 1e6,
            hits=1 - float(row["misses"]) / max(float(row["needed"]), 1.0),
            hidden=max(0.0, 1 - float(row["stall"]) / float(row["reading"])) if row["reading"] else None,
            frames=int(row["frames"]),
            experts=int(row["experts"]),
            frame_bytes=int(row["frame_bytes"]),
        )
        for row in case.store.rows(sql(case))
    ]


def test(case: Case) -> Result:
    ranks = measure(case)
    if not ranks:
        return not_applicable("no rank recorded experts in tiers in this window")
    settled = [one for one in ranks if one.windows >= LEAST_WINDOWS]
    if not settled:
        most = max(one.windows for one in ranks)
        return skipped(f"{LEAST_WINDOWS} windows of a second with experts in tiers, there are {most}: send traffic for longer")
    worst = settled[0]
    hidden = "" if worst.hidden is None else f", {worst.hidden:.0%} of the reading was hidden behind computation"
    said = (
        f"rank {worst.rank} stood still for experts in {worst.stalled:.0%} of its steps' time; {worst.hits:.0%} of those it needed were in "
        f"memory, which holds {worst.frames} of {worst.experts}{hidden}"
    )
    if worst.stalled < NOTED:
        return passed(said, round(worst.stalled, 4), STALLED, "share of the steps' time")
    serious = worst.stalled >= STALLED
    stalled = [one.rank for one in settled if one.stalled >= max(NOTED, worst.stalled / 2)]
    found = _finding(case, worst, sorted(stalled), said, serious)
    return Result("fail" if serious else "warn", said, round(worst.stalled, 4), STALLED, "share of the steps' time", (found,))


def _finding(case: Case, worst: Swapped, ranks: list[int], said: str, serious: bool) -> Finding:
    whole, ms = worst.experts * worst.frame_bytes, round(worst.stall_ms, 3)
    return finding(
        case,
        ID,
        "error" if serious else "warning",
        subject("setting", "expert_memory", ranks=ranks),
        f"{listed(ranks, 'rank')} wait for experts that are not in memory: {worst.stall_ms:.1f} ms a step",
        f"{said[0].upper()}{said[1:]}. {worst.nbytes / (1 << 20):,.0f} MiB were read.",
        0.95,
        "established",
        impact=Impact(metric="step", value=ms, unit="ms", share=round(worst.stalled, 4), alone=ms),
        evidence=(
            case.sql(f"SELECT rank, stall / wall AS stalled FROM ({sql(case)})", STALLED, "share of the steps' time", "by rank"),
            case.sql(f"SELECT rank, 1 - misses / needed AS hits FROM ({sql(case)})", 1.0, "share of experts needed"),
        ),
        remedy=(
            Remedy(
                text="Give experts more memory, or spread them over more ranks, until what the traffic needs in a step is resident.",
                config={"expert_memory": f"{whole} bytes hold all of a rank"},
                risk="low: answers do not depend on it; the memory must be there",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "Steps wait for experts to be read", mandatory=False, cost=27, test=test, needs=NEEDS, page=__doc__ or "")
