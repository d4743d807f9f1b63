"""load.mmap-fault: weights come through a mapping, one page fault after the other.

What is seen: slow even from the page cache, and very slow from a network file system; a second load is fast; CPU time is in the kernel.

How it is told apart: the bytes did not come through read calls; file pages of the process rose instead, and faults were counted.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.slow_load.account import NEED, RankStart, slow, start

ID = "load.mmap-fault"
BY_CALLS = 0.5  # of the needed bytes: fewer came through read calls
MAPPED = 0.5  # of the needed bytes, as file pages of the process


def test(case: Case) -> Result:
    known = [one for one in start(case).loaded if one.planned_read and one.load.get("by_calls") is not None]
    if not known:
        return skipped("bytes read by each rank; serve with telemetry on until it answers")
    worst = min(known, key=lambda one: one.calls_over_needed)
    faults = worst.number("major_faults") + worst.number("minor_faults")
    said = (
        f"of the bytes rank {worst.rank} needs, {worst.calls_over_needed:.2f} came through read calls and "
        f"{_mapped(worst):.2f} stood in mapped pages; {faults:,.0f} faults"
    )
    if worst.calls_over_needed >= BY_CALLS or _mapped(worst) < MAPPED:
        return passed(said, round(worst.calls_over_needed, 3), BY_CALLS, "by read calls")
    ranks = [one.rank for one in known if one.calls_over_needed < BY_CALLS and _mapped(one) >= MAPPED]
    return slow(
        case, ID, "Weights come through page faults", ranks, worst.seconds * min(1.0, worst.reading), said[0].upper() + said[1:] + ".",
        worst.calls_over_needed, BY_CALLS, "by read calls",
        Remedy(
            text="Read with positional reads of megabytes in parallel threads instead of mapping the files.",
            risk="low: the same weights arrive",
            verify="workbench diagnose slow-load",
        ),
        0.92,
    )  # fmt: skip


def _mapped(one: RankStart) -> float:
    return one.file_pages / max(one.planned_read, 1)


CHECK = Check(ID, "One page fault after the other", mandatory=True, cost=12, test=test, needs=(NEED,), page=__doc__ or "")
