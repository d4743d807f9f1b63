"""load.every-rank-reads-all: ranks read bytes that they do not keep.

What is seen: loading takes as long with eight ranks as with one, or longer; the storage delivers several times the checkpoint.

How it is told apart: bytes that came through read calls over bytes that the rank's plan needs. It stays the same when the cache is warm.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.slow_load.account import NEED, slow, start

ID = "load.every-rank-reads-all"
TOO_MUCH = 1.5  # bytes read over bytes needed (reference section 2, load.*)


def test(case: Case) -> Result:
    known = [one for one in start(case).loaded if one.planned_read and one.load.get("by_calls") is not None]
    if not known:
        return skipped("bytes read by each rank; serve with telemetry on until it answers")
    worst = max(known, key=lambda one: one.calls_over_needed)
    ratio = worst.calls_over_needed
    said = f"rank {worst.rank} read {ratio:.2f} times the bytes it needs"
    if ratio <= TOO_MUCH:
        return passed(said, round(ratio, 3), TOO_MUCH, "read / needed")
    ranks = [one.rank for one in known if one.calls_over_needed > TOO_MUCH]
    return slow(
        case, ID, "Ranks read what they do not keep", ranks, worst.seconds * (1 - 1 / ratio),
        said[0].upper() + said[1:] + ".", ratio, TOO_MUCH, "read / needed",
        Remedy(
            text="Filter by name before reading, and read slices of fused tensors, so that a rank reads only its own experts.",
            risk="low: the same weights arrive",
            verify="workbench diagnose slow-load",
        ),
        0.95,
    )  # fmt: skip


CHECK = Check(ID, "More is read than is needed", mandatory=True, cost=10, test=test, needs=(NEED,), page=__doc__ or "")
