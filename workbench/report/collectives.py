"""Collectives: who waits for whom, and where the time of a layer goes."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from traces.store import Store
from workbench.report.reduce import worst
from workbench.report.scope import Scope
from workbench.report.section import Figure, Missing, Section
from workbench.report.side_by_side import axes, lay_out, rank_names
from workbench.report.theme import SEGMENTS, figure
from workbench.report.units import count, duration

SIDE = 64  # ranks on a side of the wait matrix at most
LAYERS = 40

MATRIX = "SELECT op, rank, on_rank, wait::DOUBLE AS wait, n FROM wait_matrix ORDER BY op, rank, on_rank"
FRONTIER = """
SELECT layer, count(*) AS n, avg(attention) AS attention, avg(router) AS router, avg(exchange) AS exchange, avg(dispatch) AS dispatch,
       avg(experts) AS experts, avg(combine) AS combine, avg(total) AS total
FROM frontier GROUP BY layer ORDER BY layer
"""
LEAD = (
    "In an all-to-all nobody leaves before the last one has entered. Time spent waiting is therefore charged to the rank that came last: "
    "a strong column is a rank that the others wait for, and its own row is faint."
)
NO_DETAIL = "workbench serve MODEL --detail-every 16 (or any smaller number)"


def section(store: Store, scope: Scope) -> Section:
    return Section("collectives", "All-to-all and layers", LEAD, (*_matrix(store), *_frontier(store)))


def _matrix(store: Store) -> tuple[Figure | Missing, ...]:
    rows = store.rows(MATRIX, limit=1_000_000)
    if not rows:
        return (Missing("The wait matrix was not measured: no collective was recorded.", NO_DETAIL),)
    ranks = 1 + max(max(row["rank"], row["on_rank"]) for row in rows)
    totals: dict[str, float] = {}
    for row in rows:
        totals[row["op"]] = totals.get(row["op"], 0.0) + row["wait"]
    ops = [op for op in ("header", "exchange", "dispatch", "combine", *sorted(totals)) if op in totals]
    ops = list(dict.fromkeys(ops))[:4]
    group = max(1, -(-ranks // SIDE))
    top = max((value for op in ops for line in _grid([r for r in rows if r["op"] == op], ranks, group) for value in line), default=1.0)
    plot = figure(margin={"l": 74, "r": 20, "t": 34, "b": 54})
    names = rank_names(ranks, group)
    for index, op in enumerate(ops):
        grid = _grid([row for row in rows if row["op"] == op], ranks, group)
        plot.add_trace(
            go.Heatmap(
                z=grid,
                x=names,
                y=names,
                **axes(index),
                zmin=0,
                zmax=top,
                meta="heat",
                xgap=2,
                ygap=2,
                showscale=index == 0,
                colorbar={"title": {"text": "ms"}, "thickness": 12},
                texttemplate="%{z:.0f}" if len(names) <= 8 else None,
                hovertemplate=f"{op}: %{{y}} waited %{{z:.2f}} ms for %{{x}}<extra></extra>",
            )
        )
        lay_out(plot, index, len(ops), 0.88, f"{op} · {duration(totals[op])} in all", "waited", "came last")
    reduced = f"Every cell sums {group} neighbouring ranks." if group > 1 else ""
    return (
        Figure(
            "wait-matrix",
            "Who waited for whom",
            plot,
            380,
            "Time that the rank of the row waited for the rank of the column, summed over the detailed steps.",
            reduced,
        ),
    )


def _grid(rows: list[dict[str, Any]], ranks: int, group: int) -> list[list[float]]:
    """[waiter][last] ms, ranks merged in groups of `group`."""
    side = -(-ranks // group)
    grid = [[0.0] * side for _ in range(side)]
    for row in rows:
        grid[row["rank"] // group][row["on_rank"] // group] += row["wait"] / 1e6
    return [[round(value, 3) for value in line] for line in grid]


def _frontier(store: Store) -> tuple[Figure | Missing, ...]:
    rows = {row["layer"]: row for row in store.rows(FRONTIER)}
    if not rows:
        return (Missing("Segments of layers were not measured: no step was recorded in detail.", NO_DETAIL),)
    shown = worst(rows, LAYERS, key=lambda row: row["total"])
    plot = figure(barmode="stack", margin={"l": 74, "r": 20, "t": 40, "b": 44})
    names = [f"layer {layer}" for layer in shown]
    for segment, colour in SEGMENTS.items():
        values = [round((rows[layer][segment] or 0) / 1e6, 4) for layer in shown]
        plot.add_trace(
            go.Bar(
                name=segment,
                orientation="h",
                y=names,
                x=values,
                marker={"color": colour, "line": {"width": 0}},
                hovertemplate=f"%{{y}}: {segment} %{{x:.3f}} ms<extra></extra>",
            )
        )
    plot.update_layout(
        xaxis={"title": {"text": "ms of a step, mean of the detailed steps"}}, yaxis={"autorange": "reversed", "showgrid": False}
    )
    detailed = max(row["n"] for row in rows.values())
    left_out = f"{len(shown)} of {len(rows)} layers: the longest. " if len(shown) < len(rows) else ""
    how = (
        "Each part is how far the last rank moved on in that segment, so the parts add up to the layer's time. "
        "A long dispatch or combine beside uneven ranks is waiting, not transfer."
    )
    return (
        Figure(
            "frontier",
            "Where the time of a layer goes",
            plot,
            130 + 28 * len(shown),
            how,
            f"{left_out}From {count(detailed)} detailed steps.",
        ),
    )
