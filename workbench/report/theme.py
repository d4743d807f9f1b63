"""Colours and the common layout of figures. Backgrounds, text, grids and colour scales are set in the page, for light and dark."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from workbench.report.scope import Scope

# Middle tones that hold against white and against near-black; neighbours differ in lightness too, for readers without red-green.
SEGMENTS = {
    "attention": "#4f83c4",
    "router": "#a78bd0",
    "exchange": "#9aa5b1",
    "dispatch": "#e0a03b",
    "experts": "#1f9e89",
    "combine": "#d9694f",
}
STAGES = {
    "queue": "#d9694f",
    "tokenize": "#a78bd0",
    "image.preprocess": "#e0a03b",
    "image.encode": "#c2783a",
    "prefill": "#4f83c4",
    "decode": "#1f9e89",
    "preempted": "#b0413e",
    "detokenize": "#8fa3b5",
    "send": "#9aa5b1",
}
SERIES = ("#4f83c4", "#e0a03b", "#1f9e89", "#d9694f", "#a78bd0", "#5fb3d4", "#8a9a3b", "#c06c9b", "#9aa5b1")
MEMORY = {"anonymous": "#4f83c4", "file": "#9fc3e6", "shared": "#e0a03b"}


def figure(**layout: Any) -> go.Figure:
    """An empty figure with tight margins, no template of plotly's own, and one font for all."""
    base: dict[str, Any] = {
        "template": None,
        "margin": {"l": 64, "r": 20, "t": 16, "b": 44},
        "hoverlabel": {"align": "left"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "bargap": 0.25,
    }
    return go.Figure(layout={**base, **layout})


def mark_changes(plot: go.Figure, scope: Scope) -> None:
    """Draws a dotted line at every placement switch, named at the top."""
    for change in scope.changes:
        plot.add_shape(
            type="line", x0=change.at, x1=change.at, y0=0, y1=1, yref="paper", line={"dash": "dot", "width": 1.2, "color": "#8a94a0"}
        )
        plot.add_annotation(
            x=change.at,
            y=1,
            yref="paper",
            yanchor="bottom",
            xanchor="left",
            text=change.label,
            showarrow=False,
            font={"size": 11},
            textangle=0,
        )


def time_axis(title: str = "seconds since the start of the window") -> dict[str, Any]:
    return {"title": {"text": title}, "rangemode": "tozero", "zeroline": False}


def series_colour(index: int) -> str:
    return SERIES[index % len(SERIES)]
