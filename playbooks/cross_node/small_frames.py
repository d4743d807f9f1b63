"""net.mtu-small: one host sends smaller frames than the others.

What is seen: bandwidth to and from a host is low and its CPU busy, no packet is lost. Usual reasons: an overlay or container network whose
MTU was left at a default (calico issue 4563: pods at 1500 on a fabric of 9000), a host installed from another image.

How it is told apart: the MTU of the interface that carries the traffic differs from that of most ranks. Whether that costs anything is
not said by the setting; it is a supported finding, and the measured bandwidth of the same test stands beside it.
"""

from __future__ import annotations

from collections import Counter

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed
from playbooks.document import Remedy
from playbooks.finding import finding, subject
from playbooks.preflight.reached import REACHED, host, places
from probes.fabric.record import PLACE

ID = "net.mtu-small"


def test(case: Case) -> Result:
    sizes = {at.rank: one.mtu for at in places(case).values() for one in at.interfaces if one.name == at.interface}
    if len(sizes) < 3:
        return not_applicable("fewer than three ranks with a known MTU: nobody differs from most")
    usual, many = Counter(sizes.values()).most_common(1)[0]
    small = {rank: size for rank, size in sizes.items() if size < usual}
    if not small or many <= len(sizes) / 2:
        return passed(f"{len(sizes)} interfaces have an MTU of {min(sizes.values())} bytes or more", min(sizes.values()), usual, "bytes")
    hosts = sorted({host(case, rank) for rank in small})
    made = finding(
        case,
        ID,
        "warning",
        subject("host", ",".join(hosts), hosts=hosts, ranks=sorted(small)),
        f"{', '.join(hosts)}: frames of {min(small.values())} bytes where others have {usual}",
        f"The interface that carries the traffic of {', '.join(hosts)} has an MTU of {min(small.values())} bytes, "
        f"{many} others have {usual}.",
        0.7,
        "supported",
        evidence=(
            case.derived(f"event {PLACE}: mtu of the used interface", min(small.values()), usual, "bytes", f"ranks {sorted(small)}"),
        ),
        remedy=(
            Remedy(
                text="Give the interface the MTU of the others, less what a tunnel adds.",
                risk="medium: connections are interrupted",
                command=f"ip link set INTERFACE mtu {usual}",
                verify="workbench fabric",
            ),
        ),
    )
    return Result("warn", f"an MTU of {min(small.values())} where {usual} is usual", min(small.values()), usual, "bytes", (made,))


CHECK = Check(ID, "Small frames on one host", mandatory=False, cost=2, test=test, needs=(REACHED,), page=__doc__ or "")
