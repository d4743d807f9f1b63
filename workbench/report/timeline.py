"""A few detailed steps, aligned over the ranks: what every rank did in every layer."""

from __future__ import annotations

from typing import Any, NamedTuple

import plotly.graph_objects as go

from traces.store import Store
from workbench.report.collectives import NO_DETAIL
from workbench.report.scope import Scope
from workbench.report.section import Figure, Missing, Section
from workbench.report.theme import SEGMENTS, figure
from workbench.report.units import count, duration

BARS = 4_000  # bars a step may have: more are drawn too slowly to move through

STEPS = """
WITH per_step AS (SELECT step, sum(total)::DOUBLE AS total FROM frontier GROUP BY step),
     ranked AS (SELECT step, total, row_number() OVER (ORDER BY total DESC) AS slowness, row_number() OVER (ORDER BY step DESC) AS age,
                       count(*) OVER () AS n FROM per_step)
SELECT CASE WHEN slowness = 1 THEN 'slowest' WHEN slowness = (n + 1) // 2 THEN 'median'
            WHEN slowness = greatest(1, n // 10) THEN '90th percentile' ELSE 'last' END AS word, step, total, n
FROM ranked WHERE slowness IN (1, (n + 1) // 2, greatest(1, n // 10)) OR age = 1 ORDER BY slowness
"""
ROWS = """
SELECT step, rank, layer, ts, attention, router, exchange, dispatch, experts, combine, tokens_in, tokens_routed
FROM layer WHERE step IN (SELECT unnest($steps)) ORDER BY rank, layer
"""
LEAD = (
    "The same step on all ranks, on one clock. Ranks that finish their experts early wait in combine for the one that does not; "
    "a rank whose attention is long, too, is slow rather than overloaded."
)
HOW = "Choose a step at the top right. Hover for the layer and its rows."


class Bar(NamedTuple):
    """One segment of one layer on one rank, ms from the step's start."""

    start: float
    length: float
    rank: int
    text: str


def section(store: Store, scope: Scope) -> Section:
    steps = store.rows(STEPS)
    if not steps:
        missing = Missing("No step was recorded in detail, so there is no timeline of the ranks.", NO_DETAIL)
        return Section("timeline", "Steps, rank by rank", LEAD, (missing,))
    rows = store.rows(ROWS, {"steps": [s["step"] for s in steps]}, limit=2_000_000)
    return Section("timeline", "Steps, rank by rank", LEAD, (_figure(steps, rows),))


def _figure(steps: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Figure:
    ranks = sorted({row["rank"] for row in rows})
    layers = len({row["layer"] for row in rows})
    shown = ranks[: max(1, BARS // (len(SEGMENTS) * max(layers, 1)))]
    plot = figure(barmode="overlay", bargap=0.25, margin={"l": 74, "r": 20, "t": 56, "b": 44})
    for index, step in enumerate(steps):
        _add_step(plot, [row for row in rows if row["step"] == step["step"] and row["rank"] in set(shown)], visible=index == 0)
    plot.update_layout(
        xaxis={"title": {"text": "ms since the first rank began"}, "zeroline": False},
        yaxis={
            "tickvals": shown,
            "ticktext": [f"rank {rank}" for rank in shown],
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
        },
        updatemenus=[{"buttons": _buttons(steps), "x": 1, "xanchor": "right", "y": 1.04, "yanchor": "bottom"}],
    )
    reduced = f"{len(steps)} of {count(steps[0]['n'])} detailed steps"
    reduced += f", {len(shown)} of {len(ranks)} ranks." if len(shown) < len(ranks) else "."
    return Figure("timeline", "One step on every rank", plot, 190 + 34 * len(shown), HOW, reduced)


def _buttons(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A choice per step: shows its six traces and hides the others."""
    segments = len(SEGMENTS)
    shown = [[number // segments == index for number in range(len(steps) * segments)] for index in range(len(steps))]
    return [
        {"label": f"{step['word']}: step {step['step']}, {duration(step['total'])}", "method": "restyle", "args": [{"visible": visible}]}
        for step, visible in zip(steps, shown, strict=True)
    ]


def _add_step(plot: go.Figure, rows: list[dict[str, Any]], visible: bool) -> None:
    """One trace per segment, in the order of SEGMENTS."""
    origin = min((row["ts"] for row in rows), default=0)
    bars: dict[str, list[Bar]] = {segment: [] for segment in SEGMENTS}
    for row in rows:
        at = row["ts"] - origin
        where = f"rank {row['rank']}, layer {row['layer']}"
        tokens = f"{count(row['tokens_in'])} tokens in, {count(row['tokens_routed'])} rows for its experts"
        for segment in SEGMENTS:
            text = f"{where}: {segment} {duration(row[segment])}<br>{tokens}"
            bars[segment].append(Bar(round(at / 1e6, 4), round(row[segment] / 1e6, 4), row["rank"], text))
            at += row[segment]
    for segment, colour in SEGMENTS.items():
        mine = bars[segment]
        trace = go.Bar(
            name=segment, orientation="h", width=0.75, visible=visible, marker={"color": colour, "line": {"width": 0}}, hoverinfo="text"
        )
        trace.update(base=[b.start for b in mine], x=[b.length for b in mine], y=[b.rank for b in mine], hovertext=[b.text for b in mine])
        plot.add_trace(trace)
