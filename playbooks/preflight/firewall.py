"""start.firewall: ranks cannot connect to one another although both are there.

What is seen: every rank hangs and fails together after a long time; the message names no peer. Usual reasons: a firewall or a security
group that drops packets, a network policy, a missing route, a port range that is blocked, a cable that is out.

How it is told apart: every ordered pair really connects to a listener of the test. No answer means that packets vanish (a drop); a
refusal or "no route" comes from a machine that answered. A rank that offers a wrong address is start.bad-bind-address and left out here.
When all pairs of one host fail the host is named, else the pairs. An answer within 3 s is expected: a connect takes one round trip, and is
repeated by Linux after one second and after three (tcp_syn_retries).
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed
from playbooks.document import Remedy
from playbooks.finding import finding, listed, subject
from playbooks.preflight.reached import REACHED, host, reached, unbound
from probes.fabric.reach import Reach
from probes.fabric.record import REACH

ID = "start.firewall"


def test(case: Case) -> Result:
    unbound_ranks = {one.rank for one in unbound(case)}
    tried = [one for one in reached(case) if one.dst not in unbound_ranks]
    if not tried:
        return not_applicable("no rank offers an address to which another could connect")
    bad = [one for one in tried if one.seconds is None]
    if not bad:
        slowest = max(one.seconds or 0.0 for one in tried)
        return passed(f"{len(tried)} ordered pairs connect, the slowest within {slowest * 1e3:.1f} ms", 0, 0, "pairs")
    ranks = blamed(bad, tried)
    silent = all(one.why == "no answer" for one in bad)
    pairs = ", ".join(f"{one.src} to {one.dst} ({one.why})" for one in bad[:8])
    made = finding(
        case,
        ID,
        "critical",
        subject("rank", ",".join(map(str, ranks)), ranks=ranks, hosts=sorted({host(case, rank) for rank in ranks})),
        f"{listed(ranks, 'rank').capitalize()} cannot be connected to"
        if len(ranks) == 1
        else f"{listed(ranks, 'rank').capitalize()} cannot connect",
        f"{len(bad)} of {len(tried)} ordered pairs of ranks do not connect: {pairs}. "
        + ("Packets vanish without an answer: a firewall, a policy or a cut link. " if silent else "")
        + "A collective waits for all of them.",
        0.95,
        "established",
        evidence=(
            case.sql(
                f"SELECT count(*) AS n FROM event WHERE kind = '{REACH}' AND attrs->>'seconds' IS NULL", 0, "pairs", "that do not connect"
            ),
        ),
        remedy=(
            Remedy(
                text="Open all ports between these hosts (or pin and open the library's range), then see that links and routes are up.",
                risk="medium: rules of the network change",
                command="ss -tn state syn-sent; nft list ruleset; ip route get ADDRESS",
                verify="workbench fabric",
            ),
        ),
    )
    return Result("fail", f"{len(bad)} pairs do not connect", len(bad), 0, "pairs", (made,))


def blamed(bad: list[Reach], tried: list[Reach]) -> list[int]:
    """The one rank all of whose pairs fail while all others connect; else every rank of a pair that fails."""
    for rank in sorted({end for one in bad for end in (one.src, one.dst)}):
        own = [one for one in tried if rank in (one.src, one.dst)]
        if len(own) > 2 and len(own) == len(bad) and all(rank in (one.src, one.dst) for one in bad):
            return [rank]
    return sorted({end for one in bad for end in (one.src, one.dst)})


CHECK = Check(ID, "Ranks that cannot connect", mandatory=False, cost=1, test=test, needs=(REACHED,), page=__doc__ or "")
