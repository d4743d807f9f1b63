"""net.packet-loss: what a host sends is lost on the way and sent again.

What is seen: bandwidth far below the link's, long tails; the median of small messages hardly moves. Usual reasons: a policer or a shallow
buffer, a damaged cable, missing flow control on RoCE, an overrun switch.

How it is told apart: TCP segments sent again, out of those sent, of each host's own counters while one pair after another is measured.
A host above 2 % whose paths were not limited by its CPU is named. Measured: up to 0.5 % on links without a limit on busy cores (queues
of the kernel overflow), 53 % behind a policer; with 1 % of random loss the counter says 1 % (reference/fault_lab.md section 1).
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.finding import finding, subject
from playbooks.preflight.reached import host, read
from probes.fabric.answer import Node
from probes.fabric.record import SEGMENTS

ID = "net.packet-loss"
LOST = 0.02
ENOUGH = 1_000  # segments: below it a share says nothing
COUNTED = Need("TCP counters of a fabric test", "event", 1, "workbench fabric", where=f"kind = '{SEGMENTS}'", time="")


def test(case: Case) -> Result:
    shares = {node.rank: node.retransmitted / node.segments for node in read(case, SEGMENTS, Node) if node.segments >= ENOUGH}
    if not shares:
        return skipped(f"a host that sends at least {ENOUGH} TCP segments: workbench fabric --largest 16")
    worst = max(shares.values())
    lossy = {rank: share for rank, share in shares.items() if share >= LOST}
    if not lossy:
        return passed(f"at most {worst:.2%} of the segments were sent again", round(worst, 5), LOST, "share of segments")
    hosts = sorted({host(case, rank) for rank in lossy})
    said = ", ".join(f"{host(case, rank)} {share:.1%}" for rank, share in sorted(lossy.items()))
    made = finding(
        case,
        ID,
        "error",
        subject("host", ",".join(hosts), hosts=hosts, ranks=sorted(lossy)),
        f"Packets that {', '.join(hosts)} sends are lost",
        f"Segments that had to be sent again: {said}; on the best host {min(shares.values()):.2%}.",
        0.9,
        "established",
        evidence=(
            case.sql(
                f"SELECT max((attrs->>'retransmitted')::DOUBLE / greatest((attrs->>'segments')::DOUBLE, 1)) AS share FROM event "
                f"WHERE kind = '{SEGMENTS}'",
                LOST,
                "share of segments",
                "sent again",
            ),
        ),
        remedy=(
            Remedy(
                text="Look for drops on the way: policers, buffers and error counters of the port, cable, optic; on RoCE flow control.",
                risk="medium: the network changes",
                command="nstat -az TcpRetransSegs; ethtool -S INTERFACE; tc -s qdisc",
                verify="workbench fabric",
            ),
        ),
    )
    return Result("fail", said, round(worst, 5), LOST, "share of segments", (made,))


CHECK = Check(ID, "Lost packets", mandatory=False, cost=1, test=test, needs=(COUNTED,), page=__doc__ or "")
