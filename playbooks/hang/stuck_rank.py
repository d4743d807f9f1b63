"""hang.stuck-rank: a rank's device or collective library stopped finishing work that its peers have finished.

What is seen: every rank waits; the dumps blame innocent ranks that merely come later in the chain. Usual reasons: a device error (Xid, ECC,
NPU fault), a hung copy or kernel, a lost link on that device.

How it is told apart: a collective that must wait for all members is open on this rank although another member has completed it. Then all
members had entered it and this rank had given its data, so neither the network nor a peer can be what it waits for. Checked on NVIDIA's
labelled 16-rank dumps (nvidia-resiliency-ext, tests/attribution/unit/fr_traces/gpu_error_1st), where it names both injected ranks.

Thresholds: none. A library notes the end of a collective a moment after it ended, so that a dump of a running job may show one such
collective: it is a hypothesis, unless the rank has several or somebody waits for it.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.document import Remedy
from playbooks.finding import finding, listed, subject
from playbooks.hang.recorded import DUMPS, graph, named

ID = "hang.stuck-rank"


def test(case: Case) -> Result:
    found = graph(case)
    if not found.stuck:
        return passed(f"no rank of {len(found.ranks)} has an open collective that a peer has completed", 0, 0, "ranks")
    waited = {other for wait in found.waits for other in wait.others}
    sure = {rank: ops for rank, ops in found.stuck.items() if len(ops) > 1 or rank in waited}
    stuck = sure or found.stuck
    ranks = sorted(stuck)
    evidence = tuple(
        case.sql(
            f'SELECT count(*) AS n FROM flight WHERE rank = {rank} AND "group" = {case.literal(ops[0].group)} '
            f"AND open AND seq <= {ops[-1].seq}",
            0, "open collectives that peers completed",
            f"rank {rank}: first {ops[0].op} {ops[0].seq} of {named(found, ops[0].group)}; {len(ops)} in all",
        )
        for rank, ops in sorted(stuck.items())
    )  # fmt: skip
    made = finding(
        case,
        ID,
        "critical" if sure else "warning",
        subject("rank", ranks[0] if len(ranks) == 1 else ",".join(map(str, ranks)), ranks=ranks),
        f"{listed(ranks, 'rank').capitalize()} stopped finishing collectives that their peers finished",
        f"On {listed(ranks, 'rank')} collectives are still open which other members of the group have completed, so their data had "
        "arrived: the device or the collective library of these ranks stopped, not the network and not a peer. "
        + ("All others wait for them." if sure else "Nobody waits for them: the dump may be of a running job; take a second one."),
        0.95 if sure else 0.3,
        "established" if sure else "hypothesis",
        evidence=evidence,
        remedy=(
            Remedy(
                text="Look at the device of these ranks (kernel log for Xid or NPU faults, ECC counters), take the host out, restart the "
                "job without it.",
                risk="medium: the job restarts",
                command="dmesg -T | grep -iE 'xid|nvrm|npu|amdgpu'; workbench doctor",
                verify="workbench fabric",
            ),
        ),
    )
    said = f"{listed(ranks, 'rank')}: open collectives that peers completed"
    return Result("fail" if sure else "warn", said, len(ranks), 0, "ranks", (made,))


CHECK = Check(ID, "A rank's device stopped finishing work", mandatory=True, cost=1, test=test, needs=(DUMPS,), page=__doc__ or "")
