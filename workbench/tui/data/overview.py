"""The overview: throughput, latencies, ranks, losses and the last events of a window."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from workbench.tui.data.ask import ask
from workbench.tui.data.windows import SECOND, Span, since
from workbench.tui.feed import Reads

BARS = 120
MOST_EVENTS = 20
_MEMORY = 60 * SECOND  # memory is sampled every second, also before a window of steps
_AT_ONCE = 3 * SECOND  # reports of one happening lie within
FEWEST = 10  # requests below which a 90th percentile is not shown


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles in ns over `n` requests; None where too few were seen."""

    name: str
    n: int
    p50: float | None
    p90: float | None
    worst: float | None


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank over the window. Times in ns; `sync` is the mean wait for the other ranks at the head of a step."""

    rank: int
    steps: int
    step_p50: float | None
    step_max: float | None
    sync: float | None
    busy_tokens: int
    running: int
    waiting: int
    kv_used: int
    kv_total: int
    memory: int | None
    device_memory: int | None
    last_step: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, on one rank or on several at once; `dur` is the longest, ns."""

    ts: int
    ranks: tuple[int, ...]
    kind: str
    dur: int
    detail: str


@dataclass(frozen=True, slots=True)
class Overview:
    """Rates are tokens per second in bars of `bar` ns, oldest first; None where no step ran."""

    span: Span
    bar: int
    prefill: tuple[float | None, ...]
    decode: tuple[float | None, ...]
    running: int
    waiting: int
    latencies: tuple[Latency, ...]
    ranks: tuple[RankRow, ...]
    dropped: int
    events: tuple[Event, ...]

    @property
    def prefill_rate(self) -> float:
        return _mean(self.prefill)

    @property
    def decode_rate(self) -> float:
        return _mean(self.decode)


def read(store: Reads, window: int | None, now: int) -> Overview:
    """`window` in ns, None for the whole run; `now` is the clock of a live run."""
    span = since(store, window, now)
    ranks = _ranks(store, span)
    bar = max(SECOND, -(-span.length // BARS // SECOND) * SECOND)
    prefill, decode = _rates(store, span, bar)
    return Overview(
        span=span, bar=bar, prefill=prefill, decode=decode,
        running=sum(row.running for row in ranks), waiting=sum(row.waiting for row in ranks),
        latencies=_latencies(store, span), ranks=ranks, dropped=_dropped(store), events=_events(store),
    )  # fmt: skip


def _rates(store: Reads, span: Span, bar: int) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """Tokens per second in bars. The bar in progress is left out of a live window: it is always too low."""
    rows = ask(
        store,
        "SELECT (ts - ?) // ? AS bar, sum(prefill_tokens) AS prefill, sum(decode_tokens) AS decode FROM step"
        " WHERE stage = 0 AND ts >= ? AND ts < ? GROUP BY 1",
        [span.start, bar, span.start, span.end],
    )
    found = {int(row["bar"]): row for row in rows}
    bars = max(span.length // bar, 1) if span.live else -(-span.length // bar) or 1
    per = bar / SECOND

    def series(name: str) -> tuple[float | None, ...]:
        return tuple(float(found[i][name]) / per if i in found else None for i in range(bars))

    return series("prefill"), series("decode")


def _ranks(store: Reads, span: Span) -> tuple[RankRow, ...]:
    rows = ask(
        store,
        "SELECT rank, count(*) AS steps, quantile_cont(dur, 0.5) AS p50, max(dur) AS worst, avg(sync) AS sync,"
        " sum(prefill_tokens + decode_tokens) AS tokens, arg_max(running, ts) AS running, arg_max(waiting, ts) AS waiting,"
        " arg_max(kv_used, ts) AS kv_used, arg_max(kv_total, ts) AS kv_total, max(step) AS last_step"
        " FROM step WHERE ts >= ? AND ts <= ? GROUP BY rank ORDER BY rank",
        [span.start, span.end],
    )
    memory = {
        row["rank"]: row
        for row in ask(
            store,
            "SELECT rank, arg_max(rss_anon, ts) AS rss, arg_max(device_allocated, ts) AS device FROM memory"
            " WHERE rank IS NOT NULL AND ts >= ? AND ts <= ? GROUP BY rank",
            [span.start - _MEMORY, span.end],
        )
    }
    return tuple(_rank_row(row, memory.get(row["rank"], {})) for row in rows)


def _rank_row(row: dict[str, Any], memory: dict[str, Any]) -> RankRow:
    return RankRow(
        rank=row["rank"], steps=row["steps"], step_p50=row["p50"], step_max=row["worst"], sync=row["sync"],
        busy_tokens=int(row["tokens"]), running=row["running"], waiting=row["waiting"], kv_used=row["kv_used"],
        kv_total=row["kv_total"], memory=memory.get("rss"), device_memory=memory.get("device"), last_step=row["last_step"],
    )  # fmt: skip


# The same as view `request`, but the window bounds every table: a view cannot know that a request's spans lie near it in time.
_REQUESTS = """
WITH root AS (SELECT trace_id, ts, dur FROM span WHERE name = 'request' AND ts >= ? AND ts <= ?),
emitted AS (SELECT trace_id, min(ts) AS first, max(ts) AS last, count(*) AS n FROM token WHERE ts >= ? GROUP BY trace_id),
waited AS (SELECT trace_id, sum(dur)::BIGINT AS queue FROM span WHERE name = 'queue' AND ts >= ? GROUP BY trace_id)
SELECT r.ts, r.dur, w.queue, e.first - r.ts AS ttft, CASE WHEN e.n > 1 THEN (e.last - e.first) / (e.n - 1) END AS tpot
FROM root r LEFT JOIN emitted e USING (trace_id) LEFT JOIN waited w USING (trace_id)
"""


def _latencies(store: Reads, span: Span) -> tuple[Latency, ...]:
    columns = {"TTFT": "ttft", "TPOT": "tpot", "queue": "queue", "end to end": "dur"}
    asked = ", ".join(
        f"count({c}) AS {c}_n, quantile_cont({c}, 0.5) AS {c}_p50, quantile_cont({c}, 0.9) AS {c}_p90, max({c}) AS {c}_max"
        for c in columns.values()
    )
    row = ask(store, f"SELECT {asked} FROM ({_REQUESTS})", [span.start, span.end, span.start, span.start])[0]
    return tuple(
        Latency(name, row[f"{c}_n"], row[f"{c}_p50"], row[f"{c}_p90"] if row[f"{c}_n"] >= FEWEST else None, row[f"{c}_max"])
        for name, c in columns.items()
    )


def _dropped(store: Reads) -> int:
    return int(ask(store, 'SELECT coalesce(sum(rows), 0) AS n FROM "drop"')[0]["n"])


def _events(store: Reads) -> tuple[Event, ...]:
    """The last events. Routine garbage collections would drown the others; the hashes of a rank's weights are for `workbench verify`."""
    rows = ask(
        store,
        "SELECT ts, rank, kind, dur, attrs FROM event WHERE kind NOT IN ('gc', 'gc_short', 'weights') OR (kind = 'gc' AND dur >= 20000000)"
        " ORDER BY ts DESC LIMIT 200",
    )
    return _together([Event(row["ts"], _one(row["rank"]), row["kind"], row["dur"], describe(row["attrs"])) for row in rows])


def _one(rank: int | None) -> tuple[int, ...]:
    return () if rank is None else (rank,)


def _together(events: list[Event]) -> tuple[Event, ...]:
    """What several ranks report of one happening becomes one event."""
    told: list[Event] = []
    for event in events:
        for index, other in enumerate(told):
            same = (other.kind, other.detail) == (event.kind, event.detail) and other.ts - event.ts < _AT_ONCE
            if same and event.ranks and other.ranks and event.ranks[0] not in other.ranks:
                ranks = tuple(sorted((*other.ranks, *event.ranks)))
                told[index] = Event(other.ts, ranks, other.kind, max(other.dur, event.dur), other.detail)
                break
        else:
            told.append(event)
    return tuple(told[:MOST_EVENTS])


def describe(attrs: str | dict[str, Any] | None) -> str:
    """Attributes as words: key value, key value. What is empty is left out; what is nested loses its brackets."""
    values = json.loads(attrs) if isinstance(attrs, str) else attrs
    if not isinstance(values, dict):
        return "" if values is None else str(values)
    told = ((key, describe(value) if isinstance(value, dict) else value) for key, value in values.items())
    return "  ".join(f"{key} {value}" for key, value in told if value not in (None, "", []))


def _mean(values: tuple[float | None, ...]) -> float:
    """Over the window; seconds without a step made no tokens."""
    return sum(v for v in values if v is not None) / len(values) if values else 0.0
