"""hang.in-flight: every member has entered a collective and nobody has completed it.

What is seen: all ranks wait in the same collective. Either the transfer does not end (a black hole for large packets, a firewall, a
down link), or the dump was taken while the job was running: one dump cannot tell these apart, two can.

How it is told apart: all members hold the collective open, and nobody waits for anybody who has not entered, and no rank's dump is
missing.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed
from playbooks.document import Remedy
from playbooks.finding import finding, subject
from playbooks.hang.recorded import DUMPS, graph, named

ID = "hang.in-flight"


def test(case: Case) -> Result:
    found = graph(case)
    if found.stuck or found.waits or found.mismatches or found.silent:
        return not_applicable("open collectives are explained by another cause")
    if not found.everybody_in:
        return passed("no collective is open on all its members", 0, 0, "collectives")
    group, seq, op = min(found.everybody_in)
    made = finding(
        case,
        ID,
        "warning",
        subject("group", group, ranks=list(found.members(group))),
        f"All ranks are inside {op} number {seq} of {named(found, group)}",
        f"Every member of {named(found, group)} has entered {op} number {seq} and none has finished it. Either the transfer does not end, "
        "or the dump was taken while it ran: take a second dump some seconds later. If the number is the same, test the fabric.",
        0.4,
        "hypothesis",
        evidence=(
            case.sql(
                f'SELECT count(DISTINCT rank) AS n FROM flight WHERE "group" = {case.literal(group)} AND seq = {seq} '
                "AND open AND peer IS NULL",
                len(found.members(group)), "ranks inside", f"{op} of {named(found, group)}",
            ),
        ),
        remedy=(
            Remedy(
                text="Take a second dump; if nothing has moved, test every pair of hosts with small and large messages.",
                risk="low: nothing is changed",
                command="workbench fabric",
                verify="workbench diagnose hang",
            ),
        ),
    )  # fmt: skip
    number = len(found.everybody_in)
    return Result("warn", f"{number} collectives are open on all members", number, 0, "collectives", (made,))


CHECK = Check(ID, "A collective that all have entered does not end", mandatory=False, cost=2, test=test, needs=(DUMPS,), page=__doc__ or "")
