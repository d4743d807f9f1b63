"""net.socket-fallback: the collective library went over TCP sockets where a faster network was meant to be used.

What is seen: a fifth of the expected bandwidth or less, one CPU core per channel busy (AReaL issue 638: 5 instead of 25 GB/s).
Usual reasons: the plugin or the RDMA devices are not visible in the container (no /dev/infiniband, wrong library path), NCCL_IB_DISABLE=1
or NCCL_NET=Socket left over, or one host without its driver.

How it is told apart: the log names the transport of every channel. On a cluster that has nothing but Ethernet sockets are right; so
without a sign that something faster was there (trouble in the log, a setting, another host that uses it) it stays a hypothesis.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Result, passed
from playbooks.cross_node.channels import channel_check, facts, hosts
from playbooks.document import Basis, Outcome, Remedy
from playbooks.finding import finding, subject

ID = "net.socket-fallback"
SETTINGS = ("NCCL_IB_DISABLE=1", "NCCL_NET=Socket", "NCCL_NET_PLUGIN=none")


def test(case: Case) -> Result:
    found = hosts(case)
    slow = sorted(name for name, host in found.items() if "Socket" in host.networks)
    if not slow:
        networks = sorted({network for host in found.values() for network in host.networks})
        return passed(f"all network channels of {len(found)} hosts go over {', '.join(networks)}", 0, 0, "channels")
    reasons = _reasons(case, slow, set(found) - set(slow))
    basis: Basis = "established" if reasons else "hypothesis"
    channels = sum(found[name].channels for name in slow)
    made = finding(
        case,
        ID,
        "error" if reasons else "warning",
        subject("host", ",".join(slow), hosts=slow),
        f"{len(slow)} of {len(found)} hosts send over TCP sockets",
        f"{', '.join(slow)}: network channels go over NET/Socket. "
        + (f"{'; '.join(reasons)}." if reasons else "Nothing in the log says that a faster network was there: right on plain Ethernet."),
        0.9 if reasons else 0.4,
        basis,
        evidence=(
            case.sql("SELECT count(*) AS n FROM channel WHERE transport = 'NET' AND network = 'Socket'", 0, "channels", "NET/Socket"),
            *(case.derived("library_fact", reason) for reason in reasons),
        ),
        remedy=(
            Remedy(
                text="Make the RDMA devices and the network plugin visible to the process, and unset what forbids them.",
                config={"NCCL_IB_DISABLE": "0", "docker run": "--device /dev/infiniband --ulimit memlock=-1"},
                risk="medium: the job restarts",
                command="ibv_devinfo; env | grep NCCL_",
                verify="NCCL_DEBUG=INFO shows NET/IB or the plugin's name; workbench import LOG",
            ),
        ),
    )
    outcome: Outcome = "fail" if reasons else "warn"
    return Result(outcome, f"{channels} channels of {len(slow)} hosts go over sockets", channels, 0, "channels", (made,))


def _reasons(case: Case, slow: list[str], fast: set[str]) -> list[str]:
    """Signs that something faster was meant."""
    trouble, settings = facts(case, "trouble"), facts(case, "env.%")
    reasons = [f"{host} logged: {word}" for host in slow for word in trouble.get(host, ())]
    reasons += [f"{host} has {setting}" for host in slow for setting in settings.get(host, ()) if setting in SETTINGS]
    return reasons + ([f"{', '.join(sorted(fast))} use a faster network"] if fast else [])


CHECK = channel_check(ID, "TCP sockets instead of the fast network", test, __doc__ or "")
