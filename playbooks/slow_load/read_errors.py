"""load.read-errors: the storage answers reads with errors, and they are repeated.

What is seen: a load that takes longer now and then, without a pattern.

How it is told apart: repeated reads are counted per shard; in a healthy load there are none.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed
from playbooks.document import Remedy
from playbooks.slow_load.account import slow

ID = "load.read-errors"
NEED = Need("shards loaded", "load", 1, "serve with telemetry on until it answers", time="")


def test(case: Case) -> Result:
    rows = case.store.rows("SELECT file, sum(retries) AS n, sum(dur) / 1e9 AS s, list(DISTINCT rank) AS ranks FROM load GROUP BY file")
    bad = [row for row in rows if int(row["n"] or 0) > 0]
    total = sum(int(row["n"]) for row in bad)
    if not bad:
        return passed("no read had to be repeated", 0, 0, "reads repeated")
    worst = max(bad, key=lambda row: int(row["n"]))
    ranks = sorted({int(rank) for row in bad for rank in row["ranks"]})
    return slow(
        case, ID, "The storage fails reads", ranks, float(worst["s"] or 0), f"{total} reads had to be repeated, most of {worst['file']}.",
        float(total), 0.0, "reads repeated",
        Remedy(
            text="Look at the kernel log and the disk's or the network file system's counters; copy the checkpoint elsewhere.",
            command="dmesg | tail; smartctl -a DEVICE",
            risk="low",
            verify="workbench diagnose slow-load",
        ),
        0.9,
    )  # fmt: skip


CHECK = Check(ID, "Reads that fail", mandatory=False, cost=6, test=test, needs=(NEED,), page=__doc__ or "")
