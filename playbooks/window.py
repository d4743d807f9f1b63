"""Which stretch of a run is judged: by default the last contiguous traffic, so that a diagnosis after a remedy is not mixed with the
time before.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbooks.document import Window
from traces.store import Store

SECOND = 1_000_000_000
# The time that is judged: long enough for hundreds of steps, short enough that the mix of requests is one mix.
LENGTH = 60 * SECOND
# A run that writes detail of few steps gets a longer window, up to this, until it holds DETAILED steps.
LONGEST = 600 * SECOND
DETAILED = 60
# Traffic with a hole longer than this is two periods.
HOLE = 10 * SECOND


@dataclass(frozen=True, slots=True)
class Period:
    """[t0, t1] ns and [first, last] steps (-1, -1 in a run without steps), with the reason for choosing them."""

    t0: int
    t1: int
    first: int
    last: int
    reason: str

    @property
    def window(self) -> Window:
        return Window(t0=self.t0, t1=self.t1, steps=(self.first, self.last) if self.last >= 0 else ())

    @property
    def seconds(self) -> float:
        return (self.t1 - self.t0) / SECOND


def choose(store: Store, since: int | None = None, until: int | None = None, last: float | None = None) -> Period:
    """`since`, `until` in ns since the epoch, `last` in seconds before the end. What is not given is chosen."""
    end, named = _end(store, until)
    if since is not None:
        return _period(store, since, end, "as asked: since a given time")
    if last is not None:
        return _period(store, end - int(last * SECOND), end, f"as asked: the last {last:g} s before the {named}")
    begin, reason = _begin(store, end)
    return _period(store, begin, end, f"{reason}, up to the {named}")


def _end(store: Store, until: int | None) -> tuple[int, str]:
    bound = f"AND ts <= {until}" if until is not None else ""
    row = store.rows(f"SELECT max(ts + dur) AS t FROM step WHERE prefill_tokens + decode_tokens > 0 {bound}")[0]
    if row["t"] is None:
        row = store.rows(f"SELECT max(ts + dur) AS t FROM span WHERE parent_id IS NULL {bound}")[0]
        return (int(row["t"]) if row["t"] is not None else until or 0), "end of the last request"
    return int(row["t"]), "end of the last step with tokens"


def _begin(store: Store, end: int) -> tuple[int, str]:
    """The latest of: start of the contiguous traffic, latest placement change, 60 s before the end (more if detail is sparse)."""
    traffic = _traffic_start(store, end)
    changed = f"SELECT max(ts) AS t FROM placement WHERE ts <= {end} AND placement > (SELECT min(placement) FROM placement)"
    switch = store.rows(changed)[0]["t"]
    length, widened = _length(store, end)
    bounds = [(end - length, f"the last {length / SECOND:g} s of traffic{widened}"), (traffic, "the last contiguous traffic")]
    if switch is not None:
        bounds.append((int(switch), "since the latest change of the expert placement"))
    return max(bounds)


def _traffic_start(store: Store, end: int) -> int:
    """Start of the first step after the last hole: time in which no step ran, however long the steps take."""
    steps = (
        "SELECT min(ts) AS ts, max(ts + dur) AS until FROM step "
        f"WHERE prefill_tokens + decode_tokens > 0 AND ts BETWEEN {end - LONGEST} AND {end} GROUP BY step"
    )
    holes = f"SELECT ts, ts - max(until) OVER (ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS hole FROM ({steps})"
    row = store.rows(f"SELECT max(ts) FILTER (WHERE hole > {HOLE}) AS resumed, min(ts) AS first FROM ({holes})")[0]
    start = row["first"] if row["resumed"] is None else row["resumed"]
    return end - LENGTH if start is None else int(start)


def _length(store: Store, end: int) -> tuple[int, str]:
    """60 s, or as much as holds 60 detailed steps."""
    steps = store.rows(
        f"SELECT min(ts) AS t FROM layer WHERE tokens_routed > 0 AND ts BETWEEN {end - LONGEST} AND {end} "
        f"GROUP BY step ORDER BY step DESC LIMIT {DETAILED}"
    )
    if not steps or end - int(steps[-1]["t"]) <= LENGTH:
        return LENGTH, ""
    return min(LONGEST, end - int(steps[-1]["t"])), " (longer, because few steps have detail)"


def _period(store: Store, t0: int, t1: int, reason: str) -> Period:
    row = store.rows(f"SELECT min(step) AS first, max(step) AS last FROM step WHERE ts BETWEEN {t0} AND {t1}")[0]
    if row["first"] is None:
        return Period(t0, t1, -1, -1, reason)
    return Period(t0, t1, int(row["first"]), int(row["last"]), reason)
