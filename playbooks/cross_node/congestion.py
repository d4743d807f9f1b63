"""net.congestion: every path is well alone, and some are slow when all are used at once: they share something on the way.

What is seen: pair tests are healthy, the job is not; it depends on scale and on who else runs. Usual reasons: an oversubscribed uplink
between switches, flows hashed onto one of several links (ECMP), a shared rail.

How it is told apart: bandwidth of each ordered pair while all others send, over its bandwidth alone. Below 0.7 on two pairs or more, while
a third of all pairs keeps 0.85, is a shared link (0.7: reference section 2, net.congestion). Pairs that a CPU limited are left out: on few
cores everything is slower at once, and no link is to blame. So are the paths of a host that is slow alone (net.degraded-link): what is sent
to it waits for what it sends back. The time in which a process at either end was ready and had no CPU is taken off first.
"""

from __future__ import annotations

import statistics

import msgspec

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed, skipped
from playbooks.cross_node.degraded_link import slow_alone
from playbooks.cross_node.paths import BUSY_TOGETHER, MEASURED, QUERY, busy_pairs, given_a_cpu, is_busy, rates, waiting_places
from playbooks.document import Finding, Remedy
from playbooks.finding import finding, subject

ID = "net.congestion"
SHARED, KEPT = 0.7, 0.85
TOGETHER = Need(
    "bandwidth of pairs while all send at once",
    "link",
    6,
    "workbench fabric on at least three hosts",
    where=f"concurrent AND {MEASURED}",
    time="",
)


def test(case: Case) -> Result:
    alone, together = rates(case), rates(case, True)
    slow_hosts = {name for one in slow_alone(case) for name in one.name.split(">")}
    ratios = {pair: together[pair] / rate for pair, rate in alone.items() if pair in together and slow_hosts.isdisjoint(pair)}
    if len(ratios) < 2:
        return skipped(f"bandwidth, alone and while all send, of hosts that are well alone: {len(ratios)} of 2 pairs")
    busy = {pair: share for pair, share in busy_pairs(case, True).items() if pair in ratios}
    if all(is_busy(busy.get(pair), BUSY_TOGETHER) for pair in ratios):
        return skipped("host-contended, bandwidth undetermined: a CPU limits all pairs while all send")
    waiting = waiting_places(case)
    given = {pair: given_a_cpu(ratio, max(waiting.get(place, 0.0) for place in pair)) for pair, ratio in ratios.items()}
    lower = {pair: ratio for pair, ratio in ratios.items() if ratio < SHARED and not is_busy(busy.get(pair), BUSY_TOGETHER)}
    slow = {pair: ratio for pair, ratio in lower.items() if given[pair] < SHARED}
    if len(slow) < 2 <= len(lower):
        share = max(max(waiting.get(place, 0.0) for place in pair) for pair in lower)
        return skipped(f"host-contended, bandwidth undetermined: processes waited for a CPU {share:.0%} of the time while all sent")
    kept = [ratio for ratio in ratios.values() if ratio >= KEPT]
    worst = min(slow.values(), default=min(ratios.values(), default=1.0))
    if len(slow) < 2 or 3 * len(kept) < len(ratios):
        limited = sum(is_busy(share, BUSY_TOGETHER) for share in busy.values())
        said = f"{len(kept)} of {len(ratios)} pairs keep their bandwidth while all send" + (f"; a CPU limits {limited}" if limited else "")
        return passed(said, round(worst, 3), SHARED, "of the bandwidth alone")
    pairs = [f"{a}>{b}" for a, b in sorted(slow)]
    hosts = sorted({name for pair in slow for name in pair})
    made = finding(
        case,
        ID,
        "error",
        subject("link", ",".join(pairs), pairs=pairs, hosts=hosts),
        f"{len(slow)} paths share a link that is too narrow for all of them at once",
        f"{', '.join(pairs[:8])} reach {statistics.median(slow.values()):.2f} of what they reach alone while all send; {len(kept)} of "
        f"{len(ratios)} pairs keep theirs.",
        0.85,
        "supported",
        evidence=(
            case.derived(QUERY, round(worst, 3), 1.0, "of the bandwidth alone", "together over alone, the lowest"),
        ),
        remedy=(
            Remedy(
                text="Widen or spread the uplink between these hosts (static or adaptive routing), or place ranks so that their all-to-all "
                "stays on one side of it.",
                risk="medium: the network or the placement changes",
                command="ethtool -S INTERFACE; look at ECN, CNP and pause counters of the switch",
                verify="workbench fabric",
            ),
        ),
    )  # fmt: skip
    return Result("fail", f"{len(slow)} pairs lose bandwidth while all send", round(worst, 3), SHARED, "of the bandwidth alone", (made,))


def _relate(case: Case, made: Finding, roots: tuple[Finding, ...]) -> Finding:
    """A host of small frames handles more of them: while all send, its own paths lose first."""
    for root in roots:
        small = set(root.subject.labels["hosts"]) if root.id == "net.mtu-small" else set()
        if small and all(small & set(pair.split(">")) for pair in made.subject.labels["pairs"]):
            return msgspec.structs.replace(made, role="cascade", caused_by=(root.fingerprint,))
    return made


CHECK = Check(ID, "A shared link", mandatory=False, cost=3, test=test, needs=(TOGETHER,), page=__doc__ or "", relate=_relate)
