"""hang.stopped-rank: the process of a rank is stopped, or is gone, while the others wait for it.

What is seen: nothing moves, no error anywhere. Usual reasons: SIGSTOP (a debugger that was left, a container that was paused, a batch
system that suspends), a process that was killed while its peers have no timeout.

How it is told apart: the state of each rank's process in the kernel (/proc/PID/stat, proc(5)). A stopped process is so by a signal and
needs another one; waiting for a disk (state D) is common for a moment, and is not judged. Its Python
stack is read without pausing it, and names the line at which it stands.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Evidence, Remedy
from playbooks.finding import finding, listed, subject
from playbooks.hang.processes import Process, processes

ID = "hang.stopped-rank"
BAD = {
    "stopped": "is stopped by a signal",
    "being traced": "is held by a debugger",
    "gone": "is gone",
}


def test(case: Case) -> Result:
    found = processes(case)
    if not found:
        return skipped("states of the ranks' processes: run `workbench diagnose hang` on the host while the ranks hang")
    bad = [one for one in found if one.state in BAD]
    if not bad:
        return passed(f"{len(found)} processes run or sleep, none is stopped", 0, 0, "processes")
    ranks = [one.rank for one in bad]
    said = "; ".join(f"rank {one.rank} {BAD[one.state]}{_where(one)}" for one in bad)
    made = finding(
        case,
        ID,
        "critical",
        subject("rank", ",".join(map(str, ranks)), ranks=ranks),
        "; ".join(f"Rank {one.rank} {BAD[one.state]}" for one in bad),
        f"{said}. {len(found) - len(bad)} other ranks are there and wait for {listed(ranks, 'rank')}.",
        0.95,
        "established",
        evidence=tuple(_evidence(case, one) for one in bad),
        remedy=(
            Remedy(
                text="Find out who stopped it, then let it go on; where it is gone, read its log and restart the job.",
                risk="low: a stopped process goes on",
                command="kill -CONT PID",
                verify="workbench diagnose hang",
            ),
        ),
    )
    return Result("fail", said, len(bad), 0, "processes", (made,))


def _where(one: Process) -> str:
    return f" at {one.frames[-1]}" if one.frames else ""


def _evidence(case: Case, one: Process) -> Evidence:
    return case.derived(f"/proc/PID/stat of rank {one.rank}", one.state, "sleeping", note=" > ".join(one.frames[-3:]))


CHECK = Check(ID, "A rank's process is stopped or gone", mandatory=False, cost=1, test=test, page=__doc__ or "")
