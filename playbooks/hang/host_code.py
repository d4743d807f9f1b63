"""hang.host-code: all ranks but some are inside a collective; those stand elsewhere in their own code.

What is seen: nothing moves, every process is alive. Usual reasons: a lock, a file system, a compiler that only this rank runs, a branch
that only this rank takes.

How it is told apart: the Python stacks of all ranks at one moment. It fails when more than half wait inside a collective and some do not;
the frames of those name the line. How far each rank's collectives have come (the table `collective`) stands beside it, where none has
ended for ten seconds. One moment of a running job looks alike, so that without a rank that is behind by its numbers it is a hypothesis.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed, skipped
from playbooks.document import Evidence, Remedy
from playbooks.finding import finding, listed, subject
from playbooks.hang.processes import Process, processes
from playbooks.hang.sequence import QUERY, behind, stood_still
from playbooks.hang.stopped_rank import BAD

ID = "hang.host-code"


def test(case: Case) -> Result:
    found = [one for one in processes(case) if one.frames]
    if len(found) < 2:
        return skipped("stacks of the ranks: run `workbench diagnose hang` on the host while the ranks hang")
    if any(one.state in BAD for one in processes(case)):
        return not_applicable("a rank is stopped or gone: what the others stand in follows from it")
    inside = [one for one in found if one.waits]
    outside = [one for one in found if not one.waits]
    if not outside:
        return passed(f"all {len(found)} ranks are inside a collective", len(inside), len(found), "ranks")
    if len(inside) <= len(found) / 2:
        return skipped(f"a moment in which most ranks wait in a collective: {len(inside)} of {len(found)} do")
    late = behind(case) if stood_still(case, min(one.ts for one in found)) else {}
    ranks = [one.rank for one in outside]
    sure = any(rank in late for rank in ranks)
    where = "; ".join(f"rank {one.rank} stands at {one.frames[-1]}" for one in outside)
    numbers = "; ".join(f"rank {rank} is {late[rank][1]} collectives behind in {late[rank][0]}" for rank in ranks if rank in late)
    made = finding(
        case,
        ID,
        "error" if sure else "warning",
        subject("rank", ",".join(map(str, ranks)), ranks=ranks, waiting=[one.rank for one in inside]),
        f"{listed(ranks, 'rank').capitalize()} stand{'s' if len(ranks) == 1 else ''} in host code, {len(inside)} wait in a collective",
        f"{where}. {numbers}",
        0.8 if sure else 0.5,
        "supported" if sure else "hypothesis",
        evidence=(
            *(_stack(case, one) for one in outside),
            *((case.derived(QUERY, max(late[r][1] for r in ranks if r in late), 0, "collectives behind"),) if sure else ()),
        ),
        remedy=(
            Remedy(
                text="Look at the line that the stack names: a lock, a data loader, a file system, a branch of one rank only.",
                risk="low: a stack is only read",
                command="py-spy dump --pid PID",
                verify="workbench diagnose hang",
            ),
        ),
    )
    return Result("fail" if sure else "warn", where, len(outside), 0, "ranks", (made,))


def _stack(case: Case, one: Process) -> Evidence:
    return case.derived(f"stack of rank {one.rank}", one.frames[-1], "inside a collective", note=" > ".join(one.frames[-4:]), kind="stack")


CHECK = Check(ID, "A rank stands in host code", mandatory=False, cost=2, test=test, page=__doc__ or "")
