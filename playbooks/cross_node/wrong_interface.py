"""net.wrong-interface: traffic goes over a slow interface although a faster one joins the same hosts.

What is seen: a tenth of the bandwidth or less, evenly on all pairs; the fast NIC's counters stand still. Usual reasons: no interface is
named and the library takes the first, or that of the default route or of the host's name; a prefix in NCCL_SOCKET_IFNAME that matches
another one (nccl-tests issue 9, NCCL issue 1581).

How it is told apart: byte counters of every interface before and after the pair test say which one carried it, and a plain stream over
each interface that the hosts have in common says what each can do. It fails when the one in use reaches less than 0.7 of the best other
(the share below which a path counts as slow, reference section 3.5) on most hosts. Where it does on a few, or the stream
over the one in use does not end, nothing is ruled out.
"""

from __future__ import annotations

import statistics

from playbooks.attribution.pair_outliers import BELOW_USUAL
from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, passed, skipped
from playbooks.document import Remedy
from playbooks.finding import finding, listed, subject
from playbooks.preflight.reached import host, read
from probes.fabric.answer import Node
from probes.fabric.reach import Carried
from probes.fabric.record import CARRIED, REACH, SEGMENTS

ID = "net.wrong-interface"
TESTED = Need("a fabric test", "event", 1, "workbench fabric on all hosts", where=f"kind = '{REACH}'", time="")


def test(case: Case) -> Result:
    by_rank: dict[int, list[Carried]] = {}
    for one in read(case, CARRIED, Carried):
        by_rank.setdefault(one.src, []).append(one)
    by_rank = {rank: found for rank, found in by_rank.items() if any(one.used for one in found)}
    if not by_rank:
        return not_applicable("no two hosts are joined by more than one interface")
    stuck = sorted(rank for rank, found in by_rank.items() if _rate(found, True) is None)
    shares = {rank: share for rank, found in by_rank.items() if (share := _share(found)) is not None}
    worst = min(shares.values(), default=1.0)
    slow = {rank: share for rank, share in shares.items() if share < BELOW_USUAL}
    few = len(slow) <= len(shares) / 2
    if few and stuck:
        return skipped(f"a stream over the interface in use that ends in time: {listed(stuck, 'rank')} had none; workbench fabric again")
    if few and slow:
        said = f"{listed(sorted(slow), 'rank')} of {len(shares)} with {worst:.2f} of the best other one at the lowest"
        return skipped(f"an interface that is slow or fast on most hosts: {said}; workbench fabric again")
    if not shares:
        return not_applicable("no other interface than the one in use carried a stream")
    if few:
        return passed(
            f"the interface in use reaches {worst:.2f} of the best other one at least", round(worst, 3), BELOW_USUAL, "of the best"
        )
    used = sorted({one.interface for rank in slow for one in by_rank[rank] if one.used})
    better = sorted({_best(by_rank[rank]).interface for rank in slow})
    rates = [
        statistics.median(one.bandwidth for rank in slow for one in by_rank[rank] if one.interface in names and one.bandwidth is not None)
        for names in (used, better)
    ]
    hosts = sorted({host(case, rank) for rank in slow})
    made = finding(
        case,
        ID,
        "error",
        subject("setting", ",".join(used), interfaces=used, better=better, hosts=hosts, ranks=sorted(slow)),
        f"Traffic goes over {', '.join(used)}; {', '.join(better)} joins the same hosts and is {rates[1] / rates[0]:.0f} times as fast",
        f"{', '.join(used)} carries {rates[0] / 1e6:.1f} MB/s, {', '.join(better)} {rates[1] / 1e6:.1f} MB/s between the same hosts. "
        f"{_counters(case, used)}",
        0.95,
        "established",
        evidence=(
            case.sql(
                f"SELECT median((attrs->>'bandwidth')::DOUBLE) / 1e6 AS rate FROM event "
                f"WHERE kind = '{CARRIED}' AND (attrs->>'used')::BOOLEAN",
                round(rates[1] / 1e6, 1),
                "MB/s",
                "a plain stream over the interface in use",
            ),
        ),
        remedy=(
            Remedy(
                text=f"Name the interface on every host and start again: {better[0]}.",
                config={"GLOO_SOCKET_IFNAME": better[0], "NCCL_SOCKET_IFNAME": f"={better[0]}"},
                risk="medium: the job restarts",
                command="workbench fabric",
                verify="workbench fabric",
            ),
        ),
    )
    return Result("fail", f"{', '.join(used)} instead of {', '.join(better)}", round(worst, 3), BELOW_USUAL, "of the best", (made,))


def _share(found: list[Carried]) -> float | None:
    """Of the best interface, what the one in use reaches; None where there are no two to compare."""
    used, other = _rate(found, True), _rate(found, False)
    return None if used is None or other is None else used / max(used, other)


def _rate(found: list[Carried], used: bool) -> float | None:
    """Bytes/s of the interface in use, or of the best other one; None where no stream ended."""
    return max((one.bandwidth for one in found if one.used == used and one.bandwidth is not None), default=None)


def _best(found: list[Carried]) -> Carried:
    return max(found, key=lambda one: one.bandwidth or 0.0)


def _counters(case: Case, used: list[str]) -> str:
    sent = {
        name: sum(node.sent.get(name, 0) for node in read(case, SEGMENTS, Node))
        for node in read(case, SEGMENTS, Node)
        for name in node.sent
    }
    total = sum(number for name, number in sent.items() if name != "lo")
    share = sum(sent.get(name, 0) for name in used) / total if total else 0.0
    return f"Of the bytes of the pair test {share:.0%} went over {', '.join(used)}."


CHECK = Check(ID, "The wrong interface", mandatory=False, cost=1, test=test, needs=(TESTED,), page=__doc__ or "")
