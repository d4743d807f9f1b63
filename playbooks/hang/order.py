"""hang.order: ranks wait for one another in a ring, each in another collective: two groups are entered in different orders.

What is seen: all ranks wait, none is missing and none is stuck. Usual reasons: overlapping groups (tensor and expert parallel) whose
collectives are issued from two threads or streams, or a branch that swaps them on one rank.

How it is told apart: from any waiting rank, following "waits for" leads back to a rank already met. A hang with a missing rank has no such
ring, because the missing rank waits for nobody.
"""

from __future__ import annotations

from playbooks.attribution.wait_graph import Wait
from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.document import Remedy
from playbooks.finding import finding, listed, subject
from playbooks.hang.recorded import DUMPS, graph, named

ID = "hang.order"


def test(case: Case) -> Result:
    found = graph(case)
    ring = found.ring
    if not ring:
        return passed("nobody waits for one another in a ring", 0, 0, "ranks")
    ranks = sorted({wait.rank for wait in ring})
    said = "; ".join(_said(wait, named(found, wait.op.group)) for wait in ring)
    made = finding(
        case,
        ID,
        "critical",
        subject("rank", ",".join(map(str, ranks)), ranks=ranks, groups=sorted({wait.op.group for wait in ring})),
        f"{listed(ranks, 'rank').capitalize()} wait for one another: collectives of two groups are entered in different orders",
        f"{said}. Each waits inside one collective for a rank that waits inside another: no order of arrival can end this.",
        0.95,
        "established",
        evidence=tuple(
            case.sql(
                f"SELECT count(*) AS n FROM flight WHERE rank = {wait.rank} AND \"group\" = {case.literal(wait.op.group)} "
                f"AND seq = {wait.op.seq} AND open",
                0, "open collectives", _said(wait, named(found, wait.op.group)),
            )
            for wait in ring
        ),
        remedy=(
            Remedy(
                text="Issue the collectives of overlapping groups from one thread and in one order on every rank.",
                risk="low: nothing is changed",
                command="TORCH_DISTRIBUTED_DEBUG=DETAIL",
                verify="workbench diagnose hang on the dumps of the next run",
            ),
        ),
    )  # fmt: skip
    return Result("fail", said, len(ranks), 0, "ranks", (made,))


def _said(wait: Wait, group: str) -> str:
    return f"rank {wait.rank} waits in {wait.op.op} {wait.op.seq} of {group} for {listed(wait.others, 'rank')}"


CHECK = Check(ID, "Ranks wait for one another in a ring", mandatory=True, cost=1, test=test, needs=(DUMPS,), page=__doc__ or "")
