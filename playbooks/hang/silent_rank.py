"""hang.silent-rank: a member of the groups left no dump at all.

What is seen: dumps of all ranks but some. The process died (the first death decides a hang), was killed, or could not write its file.

How it is told apart: the recorders of other ranks name it as a member, and no file of its own was imported. That it died is a hypothesis:
the file may only not have been copied.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.document import Remedy
from playbooks.finding import finding, listed, subject
from playbooks.hang.recorded import DUMPS, graph

ID = "hang.silent-rank"


def test(case: Case) -> Result:
    silent = graph(case).silent
    if not silent:
        return passed("every member of every group left a dump", 0, 0, "ranks")
    ranks = list(silent)
    made = finding(
        case,
        ID,
        "error",
        subject("rank", ",".join(map(str, ranks)), ranks=ranks),
        f"{listed(ranks, 'rank').capitalize()} left no dump",
        f"Other ranks name {listed(ranks, 'rank')} as members, but there is no dump of {'it' if len(ranks) == 1 else 'them'}: the process "
        "may have died first, or its file was not copied. Without it nobody else can be cleared.",
        0.6,
        "hypothesis",
        evidence=(case.sql("SELECT count(DISTINCT rank) AS n FROM flight_group", None, "ranks with a dump"),),
        remedy=(
            Remedy(
                text="Look for the end of these processes: exit code, oom-killer, the launcher's log. Copy their dumps if any.",
                risk="low: nothing is changed",
                command="dmesg -T | grep -i 'killed process'",
                verify="workbench import all dumps; workbench diagnose hang",
            ),
        ),
    )
    return Result("warn", f"{listed(ranks, 'rank')} left no dump", len(ranks), 0, "ranks", (made,))


CHECK = Check(ID, "A rank left no dump", mandatory=False, cost=1, test=test, needs=(DUMPS,), page=__doc__ or "")
