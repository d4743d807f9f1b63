"""Experts: how evenly the ranks are loaded over time; with it the popularity of experts, and where the placements put them."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from traces.store import Store
from workbench.report import placements, popularity
from workbench.report.reduce import worst
from workbench.report.scope import SECOND, Scope
from workbench.report.section import Figure, Missing, Section
from workbench.report.theme import figure, mark_changes, series_colour, time_axis

POINTS = 600  # of one line at most
LEAST = 64  # rows a rank and second: fewer are uneven by chance alone
LINES = 8  # layers drawn as their own line

IMBALANCE = """
WITH w AS (SELECT (ts - $t0) // $span * $width AS slot, layer, rank, sum(list_sum(physical)) AS rows
           FROM expert_load GROUP BY ALL)
SELECT slot, layer, max(rows) / avg(rows) AS imbalance FROM w GROUP BY ALL
HAVING count(*) = (SELECT count(DISTINCT rank) FROM expert_load) AND avg(rows) >= $least ORDER BY layer, slot
"""
HOW = (
    "Rows received by the busiest rank over the mean of all ranks, per second and layer; "
    f"seconds with fewer than {LEAST} rows a rank are left out."
)
LEAD = (
    "Expert parallelism is as fast as its most loaded rank: every layer waits for the rank that received the most rows. "
    "1.0 is perfectly even; 2.0 means that the busiest rank computes twice its share."
)
ABSENT = Missing("Expert loads were not measured.", "workbench serve MODEL, without --no-telemetry")


def section(store: Store, scope: Scope) -> Section:
    width = max(1, -(-int(scope.length) // POINTS))
    imbalance = store.rows(IMBALANCE, {"t0": scope.t0, "width": width, "span": width * SECOND, "least": LEAST}, limit=2_000_000)
    if not imbalance:
        return Section("experts", "Experts", LEAD, (ABSENT,))
    return Section(
        "experts", "Experts", LEAD, (_imbalance(imbalance, scope), *popularity.items(store, scope), *placements.items(store, scope))
    )


def _imbalance(rows: list[dict[str, Any]], scope: Scope) -> Figure:
    layers: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        layers.setdefault(row["layer"], []).append((row["slot"], row["imbalance"]))
    shown = worst(layers, LINES, key=lambda points: max(value for _, value in points))
    plot = figure(margin={"l": 64, "r": 20, "t": 40, "b": 44}, hovermode="x unified")
    for index, layer in enumerate(shown):
        plot.add_trace(
            go.Scatter(
                name=f"layer {layer}",
                x=[slot for slot, _ in layers[layer]],
                y=[round(value, 3) for _, value in layers[layer]],
                mode="lines+markers",
                marker={"size": 4},
                line={"width": 2, "color": series_colour(index)},
            )
        )
    plot.add_hline(y=1, line={"width": 1, "dash": "dash", "color": "#8a94a0"})
    mark_changes(plot, scope)
    plot.update_layout(xaxis=time_axis(), yaxis={"title": {"text": "busiest rank / mean rank"}, "rangemode": "normal"}, legend={"y": 1.1})
    reduced = f"{len(shown)} of {len(layers)} layers: those with the highest peaks." if len(shown) < len(layers) else ""
    return Figure(
        "imbalance",
        "Rank imbalance over time",
        plot,
        340,
        HOW,
        reduced,
    )
