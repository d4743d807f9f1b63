"""Paths between hosts as a fabric test measured them: names of their ends, and whether a CPU rather than a wire decided their pace."""

from __future__ import annotations

import statistics

from playbooks.case import Case
from playbooks.preflight.reached import read
from probes.fabric.answer import LARGE, Timing
from probes.fabric.record import BUSY

Pair = tuple[str, str]
MEASURED = f"bandwidth IS NOT NULL AND size >= {LARGE} AND src <> dst"
QUERY = f"SELECT src, dst, concurrent, median(bandwidth) AS bandwidth FROM link WHERE {MEASURED} GROUP BY ALL ORDER BY ALL"

# Share of the time in which the busier process was on a CPU. A wire of 200 Mbit/s leaves it at a few per cent however loaded the host is.
BUSY_ALONE, BUSY_TOGETHER = 0.25, 0.15  # alone it is of the quickest repeat; while all send every process has less of a CPU


def is_busy(share: float | None, limit: float = BUSY_ALONE) -> bool:
    """False where it was not measured."""
    return share is not None and share > limit


def place_of(case: Case, rank: int) -> str:
    """A host, or a rank where all are on one host."""
    several = len(set(case.hosts.values())) > 1
    return case.hosts.get(rank, str(rank)) if several else f"rank {rank}"


def rates(case: Case, concurrent: bool = False) -> dict[Pair, float]:
    """Bytes/s of ordered pairs, alone or while all send: of hosts where ranks have several, of ranks where all are on one."""
    found: dict[Pair, list[float]] = {}
    for row in case.store.rows(QUERY, limit=None):
        pair = place_of(case, row["src"]), place_of(case, row["dst"])
        if row["concurrent"] == concurrent and pair[0] != pair[1]:
            found.setdefault(pair, []).append(row["bandwidth"])
    return {pair: statistics.median(seen) for pair, seen in found.items()}


def waiting_places(case: Case) -> dict[str, float]:
    """Host or rank -> the median share of the time in which its processes waited for a CPU while all sent."""
    found: dict[str, list[float]] = {}
    for one in read(case, BUSY, Timing):
        if one.concurrent:
            found.setdefault(place_of(case, one.src), []).append(one.waiting)
    return {place: statistics.median(seen) for place, seen in found.items()}


def busy_pairs(case: Case, concurrent: bool = False) -> dict[Pair, float]:
    """Ordered pair -> the median busy share of its largest messages; empty where none was measured. Smaller ones may pass within the
    burst of a shaper, at the pace of the CPU."""
    return _shares(case, concurrent, "busy")


def waiting_pairs(case: Case) -> dict[Pair, float]:
    """Ordered pair, alone -> the same of the time in which a process at one end waited for a CPU."""
    return _shares(case, False, "waiting")


def given_a_cpu(rate: float, waiting: float) -> float:
    """What a path would carry if nobody waited for a CPU so much of the time: at most, since a wire works on meanwhile."""
    return rate / max(0.05, 1 - waiting)


def _shares(case: Case, concurrent: bool, name: str) -> dict[Pair, float]:
    found: dict[Pair, dict[int, list[float]]] = {}
    for one in read(case, BUSY, Timing):
        if one.concurrent == concurrent:
            sizes = found.setdefault((place_of(case, one.src), place_of(case, one.dst)), {})
            sizes.setdefault(one.size, []).append(getattr(one, name))
    return {pair: statistics.median(sizes[max(sizes)]) for pair, sizes in found.items()}
