"""The window that a page covers, and the clock its figures share: seconds since the first thing that was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from traces.store import Store

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """A moment to mark on a time axis."""

    at: float  # seconds since the window's start
    label: str


@dataclass(frozen=True, slots=True)
class Scope:
    """t0, t1 in ns since the epoch. `changes` are the placement switches inside the window, not the first placement."""

    t0: int
    t1: int
    changes: tuple[Change, ...] = ()

    def seconds(self, ts: int | float) -> float:
        return round((ts - self.t0) / SECOND, 4)

    @property
    def length(self) -> float:
        return (self.t1 - self.t0) / SECOND


WINDOW = """
SELECT min(lo) AS lo, max(hi) AS hi FROM (
  SELECT min(ts) AS lo, max(ts + dur) AS hi FROM step UNION ALL
  SELECT min(ts), max(ts + dur) FROM span UNION ALL
  SELECT min(ts), max(ts) FROM metric)
"""
ANYTHING = (
    "SELECT min(ts) AS lo, max(ts) AS hi FROM (SELECT ts FROM resource UNION ALL SELECT ts FROM event UNION ALL SELECT ts FROM memory)"
)
CHANGES = "SELECT placement, min(ts) AS ts, any_value(source) AS source FROM placement GROUP BY placement ORDER BY placement"


def scope_of(store: Store) -> Scope:
    """The window of a run: its steps and spans; of a run that never served, whatever was recorded; else one point in time."""
    row = store.rows(WINDOW)[0]
    if row["lo"] is None:
        row = store.rows(ANYTHING)[0]
    t0 = row["lo"] if row["lo"] is not None else store.info.created
    t1 = row["hi"] if row["hi"] is not None else t0
    placements = store.rows(CHANGES)[1:]  # the first came into force with the server
    changes = tuple(
        Change(round((p["ts"] - t0) / SECOND, 3), f"placement {p['placement']} ({p['source']})") for p in placements if t0 <= p["ts"] <= t1
    )
    return Scope(t0, t1, changes)


def clock(ts: int) -> str:
    """A moment in UTC, to the second."""
    return f"{datetime.fromtimestamp(ts / SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC"
