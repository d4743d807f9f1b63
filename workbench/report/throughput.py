"""Throughput and step time over the run."""

from __future__ import annotations

import plotly.graph_objects as go

from traces.store import Store
from workbench.report.scope import SECOND, Scope
from workbench.report.section import Figure, Missing, Section
from workbench.report.theme import SEGMENTS, figure, mark_changes, time_axis

POINTS = 600  # buckets drawn at most

QUERY = """
WITH t AS (SELECT *, (bucket - $t0) // $span AS slot FROM throughput)
SELECT slot, sum(prefill_tokens) / $width AS prefill, sum(decode_tokens) / $width AS decode, sum(steps) AS steps,
       quantile_cont(step_ms_p50, 0.5) AS step_p50, max(step_ms_max) AS step_max, max(running) AS running, max(waiting) AS waiting
FROM t GROUP BY slot ORDER BY slot
"""


def section(store: Store, scope: Scope) -> Section:
    lead = "What the ranks computed, second by second, and how long their steps took. Dotted lines are changes of the expert placement."
    width = max(1, -(-int(scope.length) // POINTS))
    rows = store.rows(QUERY, {"t0": scope.t0 // SECOND * SECOND, "width": width, "span": width * SECOND})
    if not rows:
        return Section(
            "throughput",
            "Throughput",
            lead,
            (Missing("No engine step was recorded in this run.", "workbench serve MODEL, then workbench traffic URL"),),
        )
    filled = {row["slot"]: row for row in rows}
    slots = list(range(min(filled), max(filled) + 1))  # a second without steps is a real zero of throughput, and a gap of step time
    seconds = [slot * width for slot in slots]
    plot = figure(margin={"l": 64, "r": 20, "t": 40, "b": 44})
    for key, label, colour in (("prefill", "prefill tokens/s", SEGMENTS["attention"]), ("decode", "decode tokens/s", SEGMENTS["experts"])):
        plot.add_trace(
            go.Scatter(
                name=label,
                x=seconds,
                y=[round(filled[s][key], 1) if s in filled else 0 for s in slots],
                stackgroup="tokens",
                mode="lines",
                line={"width": 1, "color": colour, "shape": "hv"},
            )
        )
    for key, label, colour, dash in (
        ("step_p50", "median step, ms", "#a78bd0", "solid"),
        ("step_max", "longest step, ms", "#d9694f", "dot"),
    ):
        plot.add_trace(
            go.Scatter(
                name=label,
                x=seconds,
                y=[round(filled[s][key], 2) if s in filled else None for s in slots],
                yaxis="y2",
                mode="lines+markers",
                marker={"size": 3},
                line={"width": 1.4, "color": colour, "dash": dash},
            )
        )
    mark_changes(plot, scope)
    plot.update_layout(
        xaxis={**time_axis(), "anchor": "y2"},
        yaxis={"title": {"text": "tokens/s"}, "domain": [0.46, 1], "rangemode": "tozero"},
        yaxis2={"title": {"text": "ms"}, "domain": [0, 0.36], "rangemode": "tozero"},
        hovermode="x unified",
        legend={"y": 1.08},
    )
    reduced = f"Buckets of {width} s." if width > 1 else ""
    return Section(
        "throughput",
        "Throughput",
        lead,
        (
            Figure(
                "throughput",
                "Tokens per second and step time",
                plot,
                420,
                "Top: tokens of all ranks, stacked. Bottom: time of a step.",
                reduced,
            ),
        ),
    )
