"""net.small-message: the exchange between hosts costs the same however few rows it carries: latency decides, not bandwidth.

What is seen: a faster network changes nothing, larger batches cost nothing more. Usual reasons: decoding in small batches, chunks that a
library cuts too small (NCCL issue 2409: a fixed 10 us a step), an all-to-all made for large messages.

How it is told apart: time of dispatch and combine of every detailed layer, against the rows of the busiest rank: a line through their
medians in four classes of rows (each class a quarter of the layers). When what the rows add is less than a fifth of the whole at the
median, the fixed part decides. Said only where exchange, dispatch and combine take 30 % of the time, ranks are on several hosts, the rows
vary by a factor of two, and the host is not contended; as advice, because small batches are often what is wanted.
"""

from __future__ import annotations

import numpy as np

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed
from playbooks.cross_node.served import LAYERS, several_hosts, transfer_share, transfers
from playbooks.document import Remedy
from playbooks.finding import finding, subject
from playbooks.measured import Floats

ID = "net.small-message"
MATTERS, VARIES, CARRIED = 0.30, 2.0, 0.20


def test(case: Case) -> Result:
    if not several_hosts(case):
        return not_applicable("all ranks are on one host")
    if case.contended:
        return not_applicable("host-contended: times of the exchange say when a core was free")
    share = transfer_share(case)
    times, rows = transfers(case)
    if share < MATTERS:
        return passed(f"the exchange takes {share:.0%} of the time", round(share, 3), MATTERS, "share of the time")
    quartiles = np.quantile(rows, (0.125, 0.875))
    if quartiles[1] < VARIES * max(1.0, quartiles[0]):
        return not_applicable("the layers carry nearly equal numbers of rows: nothing tells latency from bandwidth")
    carried = share_of_rows(times, rows)
    said = f"rows explain {carried:.0%} of what dispatch and combine take, {share:.0%} of the time goes into the exchange"
    if carried >= CARRIED:
        return passed(said, round(carried, 3), CARRIED, "share")
    made = finding(
        case,
        ID,
        "info",
        subject("group", "ep", hosts=sorted(set(case.hosts.values()))),
        "The exchange between hosts is bound by latency, not by bandwidth",
        f"{said[0].upper()}{said[1:]}: more bandwidth would not help.",
        0.6,
        "supported",
        role="confirmation",
        evidence=(case.derived("medians of dispatch + combine by quarter of rows", round(carried, 3), CARRIED, "share due to rows"),),
        remedy=(
            Remedy(
                text="Decode larger batches, use the library's low-latency mode, or put fewer hosts into one expert-parallel group.",
                risk="medium: the job restarts",
                verify="workbench diagnose cross-node-throughput",
            ),
        ),
    )
    return Result("pass", said, round(carried, 3), CARRIED, "share", (made,))


def share_of_rows(times: Floats, rows: Floats) -> float:
    """Of the median time, the part that grows with the rows, 0..1. times [n] ns and rows [n] of each layer."""
    order = np.argsort(rows)
    classes = [part for part in np.array_split(order, 4) if len(part)]
    x = np.array([np.median(rows[part]) for part in classes])
    y = np.array([np.median(times[part]) for part in classes])
    slope = float(np.polyfit(x, y, 1)[0]) if np.ptp(x) > 0 else 0.0
    middle = float(np.median(times))
    return float(np.clip(slope * float(np.median(rows)) / middle, 0.0, 1.0)) if middle > 0 else 0.0


CHECK = Check(ID, "Messages too small for bandwidth to matter", mandatory=False, cost=21, test=test, needs=(LAYERS,), page=__doc__ or "")
