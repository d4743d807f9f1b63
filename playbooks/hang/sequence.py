"""The sequence table of a run of ours: which collective of each group every rank has finished last, from the table `collective`."""

from __future__ import annotations

from dataclasses import dataclass

from playbooks.case import Case
from playbooks.window import HOLE

# Rows of detailed steps only: a rank that is one detailed step behind is as far as the others, for all that is known.
QUERY = (
    'SELECT "group", rank, max(seq) AS seq, arg_max(op, seq) AS op, arg_max(step, seq) AS step FROM collective GROUP BY ALL ORDER BY ALL'
)


@dataclass(frozen=True, slots=True)
class Last:
    """The last collective of a group that a rank has left."""

    seq: int
    op: str
    step: int


def sequence(case: Case) -> dict[str, dict[int, Last]]:
    """Group -> rank -> its last; empty for a run without collectives."""
    found: dict[str, dict[int, Last]] = {}
    for row in case.store.rows(QUERY, limit=None):
        found.setdefault(row["group"], {})[row["rank"]] = Last(row["seq"], row["op"], row["step"])
    return found


def stood_still(case: Case, moment: int) -> bool:
    """No collective has ended for a while at that moment. While they end, ranks that differ by some are a job that runs."""
    newest = case.store.rows('SELECT max("exit") AS ts FROM collective')[0]["ts"]
    return newest is None or moment - int(newest) > HOLE


def behind(case: Case) -> dict[int, tuple[str, int]]:
    """Rank -> (group, how many collectives it is behind the furthest member) where that is more than none; the largest of its groups."""
    late: dict[int, tuple[str, int]] = {}
    for group, ranks in sequence(case).items():
        furthest = max(last.seq for last in ranks.values())
        for rank, last in ranks.items():
            if furthest - last.seq > late.get(rank, ("", 0))[1]:
                late[rank] = group, furthest - last.seq
    return late
