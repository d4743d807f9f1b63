"""load.postprocess: the bar has reached its end, and the model is not there yet.

What is seen: a long gap after the last read: weights are repacked, quantised, hashed or copied again, in every start.

How it is told apart: seconds of the load after the last byte; of a foreign engine, loading less reading.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.slow_load.account import NEED, slow, start

ID = "load.postprocess"
GAP = 0.3  # of the load, after the last read (our choice)
LEAST = 5.0  # seconds: our own check of expert hashes takes about a second a gigabyte and core


def test(case: Case) -> Result:
    found = start(case)
    stated, read = found.facts.get("load_seconds"), found.facts.get("read_seconds")
    if stated and read:
        gap, whole, ranks = float(stated) - float(read), float(stated), []
    elif found.loaded:
        worst = max(found.loaded, key=lambda one: one.after)
        gap, whole, ranks = worst.after, worst.after + worst.seconds, [worst.rank]
    else:
        return skipped("the time after the last read; serve with telemetry on, or give --log")
    share = gap / max(whole, 1e-9)
    said = f"{gap:.2f} s of {whole:.2f} s of loading come after the last read"
    if share < GAP or gap < LEAST:
        return passed(said, round(share, 3), GAP, "of the load")
    return slow(
        case, ID, "Weights are processed after they were read", ranks, gap, said[0].upper() + said[1:] + ".", share, GAP, "of the load",
        Remedy(
            text="Keep the processed weights (a sharded state on disk), or convert while reading, expert by expert.",
            risk="medium: a cache must be made again when the checkpoint changes",
            verify="workbench diagnose slow-load",
        ),
        0.85,
    )  # fmt: skip


CHECK = Check(ID, "Work after the last read", mandatory=True, cost=16, test=test, needs=(NEED,), page=__doc__ or "")
