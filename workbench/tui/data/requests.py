"""The most recent requests, and the stages of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.tui.data.ask import ask
from workbench.tui.data.overview import describe
from workbench.tui.data.windows import SECOND
from workbench.tui.feed import Reads

MOST = 200
_NEAR = 10 * SECOND  # spans of a request lie within, whatever the clocks of its hosts
STAGES = ("queue", "tokenize", "image.preprocess", "image.encode", "prefill", "decode", "preempted", "detokenize", "send")


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Times in ns; None where not measured."""

    trace: str
    ts: int
    status: str
    rank: int | None
    total: int
    ttft: float | None
    tpot: float | None
    queue: float | None
    input_tokens: int | None
    output_tokens: int | None
    image_tokens: int | None


@dataclass(frozen=True, slots=True)
class Stage:
    """Spans of one name, as (start, end) in ns from the request's start."""

    name: str
    bars: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Detail:
    """One request taken apart. `tokens` are the instants of its tokens, ns from its start."""

    trace: str
    total: int
    stages: tuple[Stage, ...]
    tokens: tuple[int, ...]
    attrs: str


@dataclass(frozen=True, slots=True)
class Requests:
    rows: tuple[Request, ...]
    detail: Detail | None


# As view `request`, bounded: the newest roots first, then only what was recorded since the oldest of them.
_NEWEST = f"""
SELECT trace_id, ts, dur, status, TRY_CAST((attrs ->> '$."moe.rank"') AS INTEGER) AS rank,
    TRY_CAST((attrs ->> '$."gen_ai.usage.input_tokens"') AS BIGINT) AS input_tokens,
    TRY_CAST((attrs ->> '$."gen_ai.usage.output_tokens"') AS BIGINT) AS output_tokens,
    TRY_CAST((attrs ->> '$."moe.image_tokens"') AS BIGINT) AS image_tokens
FROM span WHERE name = 'request' ORDER BY ts DESC LIMIT {MOST}
"""
_STAGES = """
SELECT trace_id, min(first) AS first, max(last) AS last, max(n) AS n, sum(queue)::BIGINT AS queue FROM (
    SELECT trace_id, min(ts) AS first, max(ts) AS last, count(*) AS n, NULL AS queue FROM token WHERE ts >= ? GROUP BY trace_id
    UNION ALL
    SELECT trace_id, NULL, NULL, NULL, sum(dur) FROM span WHERE name = 'queue' AND ts >= ? GROUP BY trace_id
) GROUP BY trace_id
"""


def read(store: Reads, chosen: str | None) -> Requests:
    """The newest requests, newest first, and the chosen one (or the newest) taken apart."""
    found = ask(store, _NEWEST)
    oldest = min((row["ts"] for row in found), default=0)
    stages = {row["trace_id"]: row for row in ask(store, _STAGES, [oldest, oldest])} if found else {}
    rows = tuple(_request(row, stages.get(row["trace_id"], {})) for row in found)
    wanted = next((row for row in rows if row.trace == chosen), rows[0] if rows else None)
    return Requests(rows, None if wanted is None else _detail(store, wanted))


def _request(row: dict[str, Any], stages: dict[str, Any]) -> Request:
    first, last, n = stages.get("first"), stages.get("last"), stages.get("n") or 0
    return Request(
        trace=row["trace_id"], ts=row["ts"], status=row["status"], rank=row["rank"], total=row["dur"], queue=stages.get("queue"),
        ttft=None if first is None else first - row["ts"], tpot=(last - first) / (n - 1) if n > 1 and first is not None and last else None,
        input_tokens=row["input_tokens"], output_tokens=row["output_tokens"], image_tokens=row["image_tokens"],
    )  # fmt: skip


def _detail(store: Reads, request: Request) -> Detail:
    near = [request.trace, request.ts - _NEAR, request.ts + request.total + _NEAR]
    spans = ask(
        store,
        "SELECT name, ts, dur, attrs FROM span WHERE trace_id = ? AND ts BETWEEN ? AND ? AND name != 'client.request'"
        " ORDER BY ts LIMIT 2000",
        near,
    )
    tokens = ask(store, "SELECT ts FROM token WHERE trace_id = ? AND ts BETWEEN ? AND ? ORDER BY ts LIMIT 2000", near)
    bars: dict[str, list[tuple[int, int]]] = {}
    for span in spans:
        if span["name"] != "request":
            start = span["ts"] - request.ts
            bars.setdefault(span["name"], []).append((start, start + span["dur"]))
    order = [name for name in STAGES if name in bars] + [name for name in bars if name not in STAGES]
    root = next((span["attrs"] for span in spans if span["name"] == "request"), None)
    stages = tuple(Stage(name, tuple(bars[name])) for name in order)
    return Detail(request.trace, request.total, stages, tuple(row["ts"] - request.ts for row in tokens), describe(root))
