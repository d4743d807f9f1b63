"""net.nic-affinity: traffic of a host crowds on few of its network devices.

What is seen: bandwidth of one or two NICs where there are eight. Usual reasons: ranks not pinned to the NIC of their root, a NIC that is
down or filtered out (NCCL_IB_HCA), a topology file of another machine.

How it is told apart: network channels counted per NIC on each host. A host that uses fewer NICs than the others is named; among the NICs it
uses, a load of more than 1.5 times the mean is (reference/causes_latency_network_hang_load.md, net.nic-affinity).
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Result, passed
from playbooks.cross_node.channels import HostNics, channel_check, hosts
from playbooks.document import Remedy
from playbooks.finding import finding, subject

ID = "net.nic-affinity"
CROWDED = 1.5  # most loaded NIC over the mean of those in use


def test(case: Case) -> Result:
    found = hosts(case)
    most = max(len(host.by_nic) for host in found.values())
    said = {name: word for name, host in found.items() if (word := _trouble(host, most))}
    worst = max(_crowding(host) for host in found.values())
    if not said:
        return passed(f"{most} NICs a host, the busiest with {worst:.2f} x the mean of its channels", round(worst, 3), CROWDED, "max/mean")
    names = sorted(said)
    made = finding(
        case,
        ID,
        "error",
        subject("host", ",".join(names), hosts=names),
        f"Network channels crowd on few NICs of {', '.join(names)}",
        "; ".join(f"{name}: {said[name]}" for name in names) + ".",
        0.8,
        "supported",
        evidence=(
            case.sql(
                "SELECT min(n) AS n FROM (SELECT host, count(DISTINCT nic) AS n FROM channel WHERE transport = 'NET' GROUP BY host)",
                most, "NICs in use on the host with the fewest",
            ),
        ),
        remedy=(
            Remedy(
                text="Let each rank use the NIC nearest to its device; look for NICs that are down or filtered out.",
                config={"NCCL_IB_HCA": "all NICs", "NCCL_CROSS_NIC": "0"},
                risk="medium: the job restarts",
                command="nvidia-smi topo -m; ibstat",
                verify="workbench import the new log; workbench diagnose cross-node-throughput",
            ),
        ),
    )  # fmt: skip
    return Result("fail", "; ".join(said.values()), round(worst, 3), CROWDED, "max/mean", (made,))


def _trouble(host: HostNics, most: int) -> str:
    if len(host.by_nic) < most:
        return f"{len(host.by_nic)} NICs in use, {most} on others"
    crowding = _crowding(host)
    return f"one NIC carries {crowding:.2f} x the mean of its channels" if crowding > CROWDED else ""


def _crowding(host: HostNics) -> float:
    return max(host.by_nic.values()) * len(host.by_nic) / host.channels


CHECK = channel_check(ID, "Traffic crowds on few NICs", test, __doc__ or "")
