"""net.degraded-link: paths of a host, of one of its directions, or a single path are slower than the rest.

What is seen: all-to-all waits for the slowest path, so one bad port slows every rank. Usual reasons: a link that came up at a lower
width, a dirty optic, a flapping port, a mis-cabled rail, a shaped or shared uplink.

How it is told apart: every ordered pair is measured alone with messages of 1 MB and more, and compared with the fastest third; rows and
columns tell a host and a direction from a path (attribution/pair_outliers.py holds the thresholds and their source). With fewer than four
ordered pairs nothing stands out, and the check is skipped. A path is left alone where the process at one end was on a CPU for much
of the time (paths.py), or where it would be well but for the time in which a process waited for one: then the host is contended, and the
bandwidth undetermined.
"""

from __future__ import annotations

import msgspec

from playbooks.attribution.pair_outliers import BELOW_USUAL, Outlier, Pair, blamed, usual
from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed, skipped
from playbooks.cross_node.paths import MEASURED, QUERY, busy_pairs, given_a_cpu, is_busy, rates, waiting_pairs
from playbooks.document import Evidence, Finding, Remedy
from playbooks.finding import finding, subject

ID = "net.degraded-link"
PAIRS = Need(
    "measured bandwidth of at least four ordered pairs",
    "link",
    4,
    "workbench fabric",
    count="count(DISTINCT src * 100000 + dst)",
    where=f"NOT concurrent AND {MEASURED}",
    time="",
)
WORDS = {"host": "every path of {}", "sending": "every path out of {}", "receiving": "every path into {}", "path": "the path {}"}


def test(case: Case) -> Result:
    bandwidth = rates(case)
    if len(bandwidth) < 4:
        return skipped(f"{len(bandwidth)} ordered pairs of hosts were measured, four are needed: workbench fabric on at least three hosts")
    good = usual(bandwidth)
    found = slow_alone(case)
    slowest = min(bandwidth.values()) / good
    if not found and (contended := blamed(bandwidth)):
        return _contended(case, contended, slowest)
    if not found:
        said = f"{len(bandwidth)} ordered pairs, the slowest with {slowest:.2f} of the usual {good / 1e6:.0f} MB/s"
        return passed(said, round(slowest, 3), BELOW_USUAL, "of the usual")
    said = "; ".join(f"{WORDS[one.blame].format(one.name)} has {one.share:.2f} of the usual bandwidth" for one in found)
    hosts = sorted({name for one in found for name in one.name.split(">")})
    made = finding(
        case,
        ID,
        "error",
        subject(
            "host" if all(one.blame != "path" for one in found) else "link",
            ",".join(one.name for one in found),
            hosts=hosts,
            ranks=sorted(rank for rank, host in case.hosts.items() if host in hosts),
        ),
        f"Slower than the rest of the fabric: {', '.join(WORDS[one.blame].format(one.name) for one in found)}",
        f"{said}. A good pair reaches {good / 1e6:.0f} MB/s.",
        0.9,
        "established",
        evidence=tuple(_evidence(case, one, bandwidth, good) for one in found),
        remedy=(
            Remedy(
                text="Look at speed, width and error counters of the ports there; until it is mended, leave the host out or place ranks so "
                "that their all-to-all does not cross it.",
                risk="medium: the job restarts",
                command="ethtool DEVICE; ibstat; perfquery",
                verify="workbench fabric",
            ),
        ),
    )
    return Result("fail", said, round(slowest, 3), 0.7, "of the usual", (made,))


def slow_alone(case: Case) -> tuple[Outlier, ...]:
    """What is slow while one pair after another is measured. Empty below four ordered pairs, and where a CPU is to blame."""
    bandwidth = rates(case)
    if len(bandwidth) < 4:
        return ()
    good, busy, waiting = usual(bandwidth), busy_pairs(case), waiting_pairs(case)
    # Where a CPU set the pace, or was waited for, the link can do more: it is neither blamed nor counted against a pattern for that.
    able = {pair: good if is_busy(busy.get(pair)) else given_a_cpu(rate, waiting.get(pair, 0.0)) for pair, rate in bandwidth.items()}
    return blamed({pair: max(rate, min(good, able[pair])) for pair, rate in bandwidth.items()})


def _contended(case: Case, found: tuple[Outlier, ...], slowest: float) -> Result:
    """Slow only where a process was on a CPU for much of the while: the wire was not what it waited for."""
    hosts = sorted({name for one in found for name in one.name.split(">")})
    said = f"host-contended, bandwidth undetermined: {', '.join(WORDS[one.blame].format(one.name) for one in found)}"
    note = finding(
        case,
        "env.host-contended",
        "info",
        subject("host", ",".join(hosts), hosts=hosts),
        f"Slow because of the CPU, not of a link: {', '.join(hosts)}",
        f"{said}. The process at one end was on a CPU for much of the time.",
        0.8,
        "supported",
        role="confirmation",
        evidence=(case.derived("event fabric.busy", round(slowest, 3), BELOW_USUAL, "of the usual", "time on a CPU"),),
    )
    return Result("skipped", said, round(slowest, 3), BELOW_USUAL, "of the usual", (note,), missing=(said,))


def _relate(case: Case, made: Finding, roots: tuple[Finding, ...]) -> Finding:
    """Lost packets slow the paths they are lost on, and small frames those that they are sent on."""
    for root in roots:
        senders = {name.split(">")[0] for name in made.subject.id.split(",")}
        if root.id in ("net.packet-loss", "net.mtu-small") and set(root.subject.labels["hosts"]) >= senders:
            return msgspec.structs.replace(made, role="cascade", caused_by=(root.fingerprint,))
    return made


def _evidence(case: Case, one: Outlier, bandwidth: dict[Pair, float], good: float) -> Evidence:
    worst = min(bandwidth[pair] for pair in one.pairs)
    pairs = ", ".join(f"{a} to {b}" for a, b in one.pairs[:6])
    return case.derived(QUERY, round(worst / 1e6, 2), round(good / 1e6, 2), "MB/s", f"slowest of {pairs}")


CHECK = Check(
    ID, "A slow host, direction or path", mandatory=True, cost=2, test=test, needs=(PAIRS,), page=__doc__ or "", relate=_relate
)
