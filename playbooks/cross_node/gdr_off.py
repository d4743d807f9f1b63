"""net.gdr-off: the network device does not reach the accelerator's memory directly; every byte goes through host memory.

What is seen: about half the bandwidth between hosts, host memory traffic. Usual reasons: the peer-memory module is not loaded, ACS or the
IOMMU is on, device and NIC hang on different roots (NCCL_NET_GDR_LEVEL), an old driver.

How it is told apart: RDMA channels (anything but Socket) without the `/GDRDMA` mark in the log. When other hosts of the same job have it,
that is established for those that lack it; when nobody has it, the hardware may not be able to, and it is a hypothesis.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Result, not_applicable, passed
from playbooks.cross_node.channels import channel_check, hosts
from playbooks.document import Remedy
from playbooks.finding import finding, subject

ID = "net.gdr-off"


def test(case: Case) -> Result:
    found = {name: host for name, host in hosts(case).items() if host.networks != ("Socket",)}
    if not found:
        return not_applicable("no channel goes over an RDMA network")
    without = sorted(name for name, host in found.items() if host.direct < host.channels)
    channels = sum(host.channels for host in found.values())
    lacking = channels - sum(host.direct for host in found.values())
    if not without:
        return passed(f"all {channels} network channels of {len(found)} hosts read the device's memory directly", 0, 0, "channels")
    some = any(host.direct for host in found.values())
    made = finding(
        case,
        ID,
        "error" if some else "warning",
        subject("host", ",".join(without), hosts=without),
        f"{len(without)} of {len(found)} hosts send through host memory",
        f"{lacking} of {channels} network channels lack GDRDMA ({', '.join(without)}). "
        + ("Others of this job have it, so it is possible here." if some else "Nobody in this job has it: perhaps the hardware cannot."),
        0.9 if some else 0.4,
        "established" if some else "hypothesis",
        evidence=(
            case.sql(
                "SELECT count(*) AS n FROM channel WHERE transport = 'NET' AND network <> 'Socket' AND NOT gdr", 0, "channels", "no GDRDMA"
            ),
        ),
        remedy=(
            Remedy(
                text="Load the peer-memory module (nvidia-peermem, or DMA-BUF with a recent kernel), switch ACS off on the bridges between "
                "device and NIC, and let each rank use the NIC of its own root.",
                risk="medium: needs root and a restart",
                command="lsmod | grep peermem; lspci -vvv | grep ACSCtl; nvidia-smi topo -m",
                verify="channels show GDRDMA; workbench import LOG",
            ),
        ),
    )
    return Result("fail" if some else "warn", f"{lacking} channels without GDRDMA", lacking, 0, "channels", (made,))


CHECK = channel_check(ID, "The NIC cannot reach the device's memory", test, __doc__ or "")
