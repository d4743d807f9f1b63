"""tail.rebalance-stall: moving experts stops all ranks, and costs more than the imbalance it cures.

What is seen: all ranks stop together, at regular intervals, each time the expert placement changes (in one published case 24
rearrangements made a run three times as long, although the balance was better; reference/causes_latency_network_hang_load.md, S4 case
3).

How it is told apart: every change of the placement is recorded with its stall. The stalls are compared with the time in which they
happened, and the steps around a change with the typical step. A single change, such as a remedy, is not a pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, passed
from playbooks.document import Finding, Impact, Remedy
from playbooks.finding import finding, subject
from playbooks.window import LENGTH, LONGEST

ID = "tail.rebalance-stall"

# Changes that make a pattern, and how far back they are looked for (the window of the other checks begins at the latest change).
PATTERN = 3
LOOK_BACK = LONGEST
# Part of the time between changes spent in stalls: the line used for the imbalance, which a rebalance is meant to cure (a rule of the
# reference: flag stall time / interval > imbalance gain).
STALL_SHARE = 0.05
# A stall is long when it takes as long as this many typical steps: shorter ones disappear in the tail.
STEPS_LONG = 5.0

NEEDS = (Need("the expert map", "placement", 1, "serve with telemetry on: `workbench serve`", time=""),)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of the placement: times ns, stalls ns (the longest over layers and ranks), sources."""

    ts: np.ndarray
    stall: np.ndarray

    @property
    def interval(self) -> float:
        """Mean ns from one change to the next."""
        return float(np.diff(self.ts).mean()) if len(self.ts) > 1 else float("inf")


def sql(case: Case) -> str:
    since = case.period.t1 - max(LOOK_BACK, LENGTH)
    return (
        "SELECT placement, min(ts) AS ts, max(stall) AS stall FROM placement WHERE source <> 'initial' "
        f"AND ts BETWEEN {since} AND {case.period.t1} GROUP BY placement ORDER BY ts"
    )


def test(case: Case) -> Result:
    rows = case.store.rows(sql(case))
    changes = Changes(np.array([float(row["ts"]) for row in rows]), np.array([float(row["stall"]) for row in rows]))
    if len(changes.ts) < PATTERN:
        return not_applicable(f"the placement changed {len(changes.ts)} times in the last {LOOK_BACK // 10**9} s: no pattern")
    share = float(changes.stall.mean() / changes.interval)
    typical = float(np.median(case.steps.wall)) if len(case.steps.step) else float("inf")
    said = (
        f"{len(changes.ts)} changes of the placement, every {changes.interval / 1e9:.1f} s, stop stepping for "
        f"{changes.stall.mean() / 1e6:.0f} ms each: "
        f"{share:.1%} of the time, {changes.stall.mean() / typical:.0f} typical steps"
    )
    long = changes.stall.mean() >= STEPS_LONG * typical
    if share < STALL_SHARE and not (long and share >= STALL_SHARE / 5):
        return passed(said, round(share, 4), STALL_SHARE, "share of time")
    found = _finding(case, changes, share, said, share >= STALL_SHARE)
    return Result("fail" if share >= STALL_SHARE else "warn", said, round(share, 4), STALL_SHARE, "share of time", (found,))


def _finding(case: Case, changes: Changes, share: float, said: str, severe: bool) -> Finding:
    mean = float(changes.stall.mean() / 1e6)
    total = f"SELECT sum(stall) / 1e6 AS total FROM ({sql(case)})"
    return finding(
        case,
        ID,
        "error" if severe else "warning",
        subject("setting", "rebalance"),
        f"Rebalancing stops all ranks for {mean:.0f} ms every {changes.interval / 1e9:.0f} s",
        f"{said[0].upper()}{said[1:]}.",
        0.9,
        "established",
        impact=Impact(metric="time", value=round(mean, 3), unit="ms", share=round(share, 4), alone=round(mean, 3)),
        evidence=(
            case.sql(total, None, "ms", "all stalls together"),
            case.sql(f"SELECT count(*) AS n FROM ({sql(case)})", PATTERN - 1, "changes", "changes of the placement"),
        ),
        remedy=(
            Remedy(
                text="Rebalance less often, only when max/mean is above a threshold, and bring weights in while serving (asynchronously).",
                risk="low",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )


CHECK = Check(ID, "Rebalancing stops all ranks", mandatory=False, cost=15, test=test, needs=NEEDS, page=__doc__ or "")
