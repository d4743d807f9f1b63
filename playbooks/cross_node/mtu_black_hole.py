"""net.mtu-blackhole: large packets to a host vanish, small ones pass.

What is seen: the job starts, small collectives work, and the first large one never ends or is reset. Usual reasons: jumbo frames on the
hosts and a switch port, tunnel or overlay that carries 1500 bytes and drops the rest without telling (NCCL issue 1957).

How it is told apart: datagrams of 576 bytes up to the interface's own MTU, not to be fragmented, three times each. All sizes above one
that passes are lost. The host common to all such pairs is named.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.finding import finding, subject
from playbooks.preflight.reached import REACHED, host, reached
from probes.fabric.reach import Reach
from probes.fabric.record import REACH

ID = "net.mtu-blackhole"


def test(case: Case) -> Result:
    tried = [one for one in reached(case) if one.passed]
    if not tried:
        return skipped("answers to datagrams of any size: workbench fabric where UDP between the hosts passes")
    bad = [one for one in tried if one.swallows]
    largest = max(max(one.passed) for one in tried)
    if not bad:
        return passed(f"packets up to {largest} bytes pass between {len(tried)} ordered pairs", 0, 0, "pairs")
    ranks = common(bad)
    hosts = sorted({host(case, rank) for rank in ranks})
    passes, vanishes = max(max(one.passed) for one in bad), min(min(one.lost) for one in bad)
    made = finding(
        case,
        ID,
        "critical",
        subject("host", ",".join(hosts), hosts=hosts, ranks=ranks),
        f"Packets of {vanishes} bytes and more vanish on the way to or from {', '.join(hosts)}",
        f"Between {len(bad)} of {len(tried)} ordered pairs packets of {passes} bytes are answered and those of {vanishes} bytes "
        "are not, although the interfaces say that they carry them. Nothing comes back that would tell the sender.",
        0.95,
        "established",
        evidence=(
            case.sql(
                f"SELECT count(*) AS n FROM event WHERE kind = '{REACH}' AND json_array_length(attrs, '$.lost') > 0",
                0,
                "pairs",
                "lost sizes",
            ),
        ),
        remedy=(
            Remedy(
                text="Set the MTU of the path and of the interfaces to the same value: raise it on the switch port or tunnel, or lower it "
                "on the hosts.",
                risk="medium: connections are interrupted",
                command=f"ip link set INTERFACE mtu {passes}; ping -M do -s {vanishes - 28} PEER",
                verify="workbench fabric",
            ),
        ),
    )
    return Result("fail", f"{len(bad)} pairs lose packets of {vanishes} bytes", len(bad), 0, "pairs", (made,))


def common(bad: list[Reach]) -> list[int]:
    """Ranks that are an end of every pair; where there is none, or two, all ends."""
    ends = [{one.src, one.dst} for one in bad]
    shared = set.intersection(*ends)
    return sorted(shared) if len(shared) == 1 else sorted(set.union(*ends))


CHECK = Check(ID, "Large packets vanish", mandatory=False, cost=1, test=test, needs=(REACHED,), page=__doc__ or "")
