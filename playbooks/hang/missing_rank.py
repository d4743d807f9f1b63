"""hang.missing-rank: a rank never entered a collective in which the others wait, and waits for nobody itself.

What is seen: all ranks but some wait in the same collective. Usual reasons: host code that does not return (a lock, the GIL held by an
extension, a data loader, a file system), an exception swallowed on one rank, a branch that only one rank takes, a stopped process.

How it is told apart: the others hold an open collective that this rank has not enqueued, and this rank has no open operation in which it
would wait for somebody else; a rank that does is a victim and is not named. Checked on NVIDIA's labelled 16-rank dumps
(nvidia-resiliency-ext, tests/attribution/unit/fr_traces/lock_gil_1st): exactly the two injected ranks.
"""

from __future__ import annotations

from playbooks.attribution.wait_graph import Wait
from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.document import Evidence, Remedy
from playbooks.finding import finding, listed, subject
from playbooks.hang.recorded import DUMPS, graph, named

ID = "hang.missing-rank"


def test(case: Case) -> Result:
    found = graph(case)
    if not found.missing:
        number = len({wait.rank for wait in found.waits})
        return passed(f"nobody who waits for nobody is waited for ({number} ranks wait)", 0, 0, "ranks")
    ranks = sorted(found.missing)
    first = _earliest(found.missing[ranks[0]])
    waiting = sorted({wait.rank for waits in found.missing.values() for wait in waits})
    made = finding(
        case,
        ID,
        "critical",
        subject("rank", ranks[0] if len(ranks) == 1 else ",".join(map(str, ranks)), ranks=ranks, waiting=waiting),
        f"{listed(ranks, 'rank').capitalize()} never entered the collective that the others wait in",
        f"{listed(waiting, 'rank').capitalize()} wait in collectives which {listed(ranks, 'rank')} never entered (the first: {first.op.op} "
        f"number {first.op.seq} of {named(found, first.op.group)}); {'it waits' if len(ranks) == 1 else 'they wait'} for nobody, so the "
        "reason lies in the host code there.",
        0.95,
        "established",
        evidence=tuple(_evidence(case, rank, found.missing[rank]) for rank in ranks),
        remedy=(_remedy(ranks),),
    )
    return Result("fail", f"{listed(ranks, 'rank')} did not enter what {len(waiting)} ranks wait in", len(ranks), 0, "ranks", (made,))




def _earliest(waits: tuple[Wait, ...]) -> Wait:
    return min(waits, key=lambda wait: (wait.op.group, wait.op.seq))


def _evidence(case: Case, rank: int, waits: tuple[Wait, ...]) -> Evidence:
    first = _earliest(waits)
    query = f'SELECT max(enqueued) AS n FROM flight_group WHERE rank = {rank} AND "group" = {case.literal(first.op.group)}'
    note = f"rank {rank} had entered up to here; {len({wait.rank for wait in waits})} ranks wait in number {first.op.seq}"
    return case.sql(query, first.op.seq, "last collective entered", note)


def _remedy(ranks: list[int]) -> Remedy:
    return Remedy(
        text=f"Take the Python stack of {listed(ranks, 'rank')} where they still run: it names the line. Look for a lock, a data loader, a "
        "file system, or a branch that only some ranks take.",
        risk="low: a stack is only read",
        command="py-spy dump --nonblocking --pid PID",
        verify="workbench import the dumps of the next run; workbench diagnose hang",
    )


CHECK = Check(ID, "A rank never entered a collective", mandatory=True, cost=1, test=test, needs=(DUMPS,), page=__doc__ or "")
