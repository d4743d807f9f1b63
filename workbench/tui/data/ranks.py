"""Ranks against each other: where a rank's time in a layer goes, and who waits for whom in the collectives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.tui.data.ask import ask
from workbench.tui.data.windows import Span, since
from workbench.tui.feed import Reads

SEGMENTS = ("attention", "router", "exchange", "dispatch", "experts", "combine")


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's layers in a window: means of a layer in ns by segment and in rows, and cost of a row in ns (None without rows)."""

    rank: int
    segments: tuple[float, ...]
    rows: float
    per_row: float | None

    @property
    def total(self) -> float:
        return sum(self.segments)


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """`mean` [waiter, waited for]: mean ns that a rank waits, a collective, for the last one to enter; 0 where it never was."""

    op: str
    n: int
    mean: NDArray[np.float64]
    last: tuple[float, ...]  # share of collectives in which each rank entered last


@dataclass(frozen=True, slots=True)
class Ranks:
    span: Span
    steps: int
    layer: int | None
    shares: tuple[Share, ...]
    waits: tuple[Waits, ...]


def read(store: Reads, window: int | None, now: int, layer: int | None) -> Ranks:
    """Of detailed steps in the window; `layer` None means all layers."""
    span = since(store, window, now)
    where, params = "ts >= ? AND ts <= ?", [span.start, span.end]
    if layer is not None:
        where, params = f"{where} AND layer = ?", [*params, layer]
    averages = ", ".join(f"avg({name}) AS {name}" for name in SEGMENTS)
    rows = ask(
        store,
        f"SELECT rank, {averages}, count(DISTINCT step) AS steps, avg(tokens_routed) AS n,"
        f" sum(experts) / nullif(sum(tokens_routed), 0) AS per_row FROM layer WHERE {where} GROUP BY rank ORDER BY rank",
        params,
    )
    shares = tuple(Share(row["rank"], tuple(float(row[name]) for name in SEGMENTS), row["n"], row["per_row"]) for row in rows)
    return Ranks(span, max((row["steps"] for row in rows), default=0), layer, shares, _waits(store, span, layer))


def _waits(store: Reads, span: Span, layer: int | None) -> tuple[Waits, ...]:
    """For every collective the last to enter is the one waited for."""
    only = "" if layer is None else " AND layer = ?"
    rows = ask(
        store,
        "WITH c AS (SELECT op, rank, enter, max(enter) OVER w AS last, arg_max(rank, enter) OVER w AS on_rank, count(*) OVER w AS ranks"
        f' FROM collective WHERE enter >= ? AND enter <= ?{only} WINDOW w AS (PARTITION BY "group", seq, step))'
        " SELECT op, rank, on_rank, sum(last - enter) AS wait, count(*) AS n FROM c WHERE ranks > 1 GROUP BY ALL",
        [span.start, span.end] if layer is None else [span.start, span.end, layer],
    )
    ranks = sorted({row["rank"] for row in rows})
    result = []
    for op in sorted({row["op"] for row in rows}, key=lambda op: -sum(row["wait"] for row in rows if row["op"] == op)):
        total, last = np.zeros((len(ranks), len(ranks))), np.zeros(len(ranks))
        ours = [row for row in rows if row["op"] == op]
        n = sum(row["n"] for row in ours) / max(len({row["rank"] for row in ours}), 1)
        for row in ours:
            total[ranks.index(row["rank"]), ranks.index(row["on_rank"])] += row["wait"]
            if row["rank"] == row["on_rank"]:
                last[ranks.index(row["rank"])] += row["n"]
        result.append(Waits(op, round(n), total / max(n, 1), tuple(last / max(n, 1))))
    return tuple(result)
