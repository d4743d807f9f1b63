"""The request waterfall: some requests, stage by stage."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from traces.store import Store
from workbench.report.scope import Scope
from workbench.report.section import Figure
from workbench.report.theme import STAGES, figure
from workbench.report.units import count, duration, number

ROWS = 40  # requests drawn: what fits a screen and is still read one by one
SLOWEST = 15

CHOSEN = """
WITH r AS (SELECT trace_id, ts, dur, row_number() OVER (ORDER BY dur DESC) AS slowness,
                  row_number() OVER (ORDER BY ts) - 1 AS arrival, count(*) OVER () AS n FROM request)
SELECT trace_id, ts, dur, n, slowness FROM r
WHERE slowness <= $slowest OR arrival % greatest(1, n // $rest) = 0
ORDER BY slowness <= $slowest DESC, ts LIMIT $rows
"""
SPANS = """
SELECT s.trace_id, s.ts, s.dur, s.name FROM span s
WHERE s.parent_id IS NOT NULL AND s.kind <> 'client' AND s.trace_id IN (SELECT unnest($ids)) ORDER BY s.ts
"""
DETAILS = (
    "SELECT trace_id, rank, status, input_tokens, output_tokens, image_tokens, ttft FROM request WHERE trace_id IN (SELECT unnest($ids))"
)


def items(store: Store, scope: Scope) -> tuple[Figure, ...]:
    """The figure, or nothing when no request was recorded."""
    chosen = store.rows(CHOSEN, {"slowest": SLOWEST, "rest": ROWS - SLOWEST, "rows": ROWS})
    return (_waterfall(store, scope, chosen),) if chosen else ()


def _waterfall(store: Store, scope: Scope, chosen: list[dict[str, Any]]) -> Figure:
    ids = [row["trace_id"] for row in chosen]
    details = {row["trace_id"]: row for row in store.rows(DETAILS, {"ids": ids})}
    spans = store.rows(SPANS, {"ids": ids}, limit=50_000)
    order = sorted(chosen, key=lambda row: row["dur"])
    place = {row["trace_id"]: index for index, row in enumerate(order)}
    start = {row["trace_id"]: row["ts"] for row in chosen}
    plot = figure(barmode="overlay", bargap=0.3, margin={"l": 128, "r": 20, "t": 78, "b": 44})
    absolute: list[list[float]] = []
    relative: list[list[float]] = []
    for name in [stage for stage in STAGES if any(s["name"] == stage for s in spans)]:
        mine = [s for s in spans if s["name"] == name and s["trace_id"] in start]
        absolute.append([scope.seconds(s["ts"]) * 1e3 for s in mine])
        relative.append([round((s["ts"] - start[s["trace_id"]]) / 1e6, 3) for s in mine])
        plot.add_trace(
            go.Bar(
                name=name,
                orientation="h",
                width=0.72,
                base=relative[-1],
                x=[round(s["dur"] / 1e6, 3) for s in mine],
                y=[place[s["trace_id"]] for s in mine],
                marker={"color": STAGES[name], "line": {"width": 0}},
                hovertext=[f"{name} {duration(s['dur'])}<br>{_about(details.get(s['trace_id']))}" for s in mine],
                hoverinfo="text",
            )
        )
    plot.update_layout(
        xaxis={"title": {"text": "ms"}, "zeroline": False},
        yaxis={
            "tickvals": list(range(len(order))),
            "ticktext": [_label(details.get(row["trace_id"]), row) for row in order],
            "tickfont": {"size": 10},
            "showgrid": False,
            "zeroline": False,
            "range": [-0.7, len(order) - 0.3],
        },
        updatemenus=[_clock_buttons(relative, absolute)],
    )
    total = chosen[0]["n"]
    reduced = (
        f"{len(chosen)} of {count(total)} requests: the {SLOWEST} slowest, and the rest spread evenly over the run."
        if total > len(chosen)
        else ""
    )
    return Figure(
        "waterfall",
        "Request waterfall",
        plot,
        130 + 15 * len(order),
        "One row is one request, the slowest on top; colours are its stages. Switch to “on the clock” to see which ones ran together.",
        reduced,
    )


def _clock_buttons(relative: list[list[float]], absolute: list[list[float]]) -> dict[str, Any]:
    choices = (("from arrival", relative), ("on the clock", absolute))
    buttons = [{"label": label, "method": "restyle", "args": [{"base": base}]} for label, base in choices]
    return {
        "type": "buttons",
        "direction": "right",
        "x": 1,
        "xanchor": "right",
        "y": 1.02,
        "yanchor": "bottom",
        "buttons": buttons,
        "pad": {"b": 30},
    }


def _label(row: dict[str, Any] | None, chosen: dict[str, Any]) -> str:
    kind = "" if row is None else ("image " if row["image_tokens"] else "text ")
    return f"{kind}{chosen['trace_id'][:6]} · {duration(chosen['dur'])}"


def _about(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    tokens = f"{number(row['input_tokens'])} in, {number(row['output_tokens'])} out, {number(row['image_tokens'])} image tokens"
    who = f"request {row['trace_id'][:12]} on rank {number(row['rank'])}, {row['status']}"
    return f"{who}<br>{tokens}<br>first token after {duration(row['ttft'])}"
