"""load.single-thread: one stream reads, and the storage could serve several.

What is seen: the load takes as long as one disk queue allows, while CPU and disk have time left.

How it is told apart: never more than one read was in flight, and reading and converting, one after the other, fill the load's time; or
reads decide, and they are small. What is gained is what two streams would overlap at least; how much more depends on the storage.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.slow_load.account import NEED, RankStart, slow, start

ID = "load.single-thread"
BOUND = 0.5  # of the load's time inside reads: reads decide
ONE = 1.15  # reads in flight on average: no more than one
SERIAL = 0.7  # of the load's time in reads and on a CPU together, where one read at a time was in flight: nothing else was waited for
FEW_READS = 8  # a load of fewer has nothing to do in parallel (our choice: two for each of our threads)
SMALL_READ = 1 << 20  # bytes: below it the cost of a call decides (reference/models_and_runtime.md 5.3: 4 threads of 8 MiB 2-3x one thread)


def test(case: Case) -> Result:
    known = [one for one in start(case).loaded if one.number("reads")]
    if not known:
        return skipped("times of reads; serve with telemetry on until it answers")
    worst = max(known, key=lambda one: one.seconds)
    said = f"rank {worst.rank} had {worst.reading:.2f} reads in flight on average, {worst.number('most_in_flight'):.0f} at most"
    if not _single(worst):
        return passed(said, round(worst.reading, 3), ONE, "reads in flight")
    each = worst.planned_read / max(worst.number("reads"), 1)
    return slow(
        case, ID, "One stream reads", [one.rank for one in known if _single(one)], worst.seconds * _serial(worst) * 0.5,
        f"{said[0].upper()}{said[1:]}, of {each / 1024:,.0f} KiB each; "
        f"{worst.reading:.0%} of {worst.seconds:.2f} s passed inside reads.",
        worst.reading, ONE, "reads in flight",
        Remedy(
            text="Read in parallel threads, megabytes at a time.",
            risk="low: the same weights arrive",
            verify="workbench diagnose slow-load",
        ),
        0.85,
    )  # fmt: skip


def _single(one: RankStart) -> bool:
    each = one.planned_read / max(one.number("reads"), 1)
    if one.number("most_in_flight") == 1 and one.number("reads") >= FEW_READS and _serial(one) >= SERIAL:
        return True
    return BOUND <= one.reading <= ONE and (one.number("most_in_flight") <= 1 or each < SMALL_READ)


def _serial(one: RankStart) -> float:
    """Share of the load that passed in reads or on a CPU. System time inside buffered reads counts twice: at most the whole."""
    busy = one.number("read_ns") + one.number("user_ns") + one.number("system_ns")
    return min(1.0, busy / max(one.number("wall_ns"), 1.0))


CHECK = Check(ID, "A single stream of reads", mandatory=True, cost=14, test=test, needs=(NEED,), page=__doc__ or "")
