"""start.bad-bind-address: a rank offers the others an address on which they cannot reach it.

What is seen: the job does not get past its start; `connection refused ... remote=[127.0.0.1]`, or ranks that wait for ever. Usual reasons:
the host's name resolves to the loopback in /etc/hosts (Debian writes 127.0.1.1 there), an interface name in GLOO_SOCKET_IFNAME or
NCCL_SOCKET_IFNAME that this host does not have (vLLM issue 7074, SGLang issue 3226).

How it is told apart: the address that the library would bind, as it chooses it, is compared with the addresses of the interfaces. An
address of no interface but the loopback, while ranks are on several hosts, is wrong whatever else is. On one host it is right.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed
from playbooks.document import Remedy
from playbooks.finding import finding, listed, subject
from playbooks.preflight.reached import REACHED, host, places, unbound
from probes.fabric.record import PLACE

ID = "start.bad-bind-address"


def test(case: Case) -> Result:
    found = places(case)
    bad = unbound(case)
    if not bad and len({one.host for one in found.values()}) < 2:
        return not_applicable("all ranks are on one host: any address will do")
    if not bad:
        return passed(f"{len(found)} ranks offer addresses of an interface", 0, 0, "ranks")
    ranks = [one.rank for one in bad]
    said = "; ".join(
        f"rank {one.rank} offers {one.address}, an address of no interface"
        if one.address
        else f"rank {one.rank} lacks the interface that is set"
        for one in bad
    )
    usable = sorted({one.name for place in bad for one in place.interfaces})
    made = finding(
        case,
        ID,
        "critical",
        subject("rank", ",".join(map(str, ranks)), ranks=ranks, hosts=sorted({host(case, rank) for rank in ranks})),
        f"{listed(ranks, 'rank').capitalize()} cannot be reached at the address that {'it offers' if len(ranks) == 1 else 'they offer'}",
        f"{said}. Ranks on other hosts cannot connect to it. Interfaces there: {', '.join(usable) or 'none'}.",
        0.95,
        "established",
        evidence=(
            case.sql(
                f"SELECT count(*) AS n FROM event WHERE kind = '{PLACE}' AND attrs->>'interface' = ''", 0, "ranks", "bound to no interface"
            ),
        ),
        remedy=(
            Remedy(
                text="Name the interface on every host, or let the host's name resolve to an address of it.",
                config={
                    "GLOO_SOCKET_IFNAME": usable[0] if usable else "INTERFACE",
                    "NCCL_SOCKET_IFNAME": usable[0] if usable else "INTERFACE",
                },
                risk="medium: the job restarts",
                command="getent hosts $(hostname); ip -4 address",
                verify="workbench fabric",
            ),
        ),
    )
    return Result("fail", said, len(ranks), 0, "ranks", (made,))


CHECK = Check(ID, "An address on which nobody can be reached", mandatory=False, cost=1, test=test, needs=(REACHED,), page=__doc__ or "")
