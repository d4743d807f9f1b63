"""Popularity of experts over time: a layer x expert heat map with a slider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from traces.store import Store
from workbench.report.scope import SECOND, Scope
from workbench.report.section import Figure
from workbench.report.theme import figure

FRAMES = 24  # positions of the time slider at most
CELLS = 600_000  # numbers in all positions together: about 4 MB of page

SHAPE = "SELECT count(DISTINCT layer) AS layers, max(expert) + 1 AS experts FROM expert_heat"
WINDOWS = """
SELECT greatest(0, (bucket - $t0) // $span) AS frame, layer, expert, sum(tokens)::DOUBLE AS tokens
FROM expert_heat_window GROUP BY ALL ORDER BY frame
"""
HOW = "Tokens that each expert was given, as a multiple of an even share. Move the slider to see how popularity shifts with the traffic."

Rows = Sequence[dict[str, Any]]
Grid = list[list[float | None]]


def items(store: Store, scope: Scope) -> tuple[Figure, ...]:
    """The figure, or nothing when no expert was given a token."""
    shape = store.rows(SHAPE)[0]
    if not shape["layers"]:
        return ()
    frames = max(1, min(FRAMES, CELLS // (shape["layers"] * shape["experts"])))
    width = max(1, -(-int(scope.length + 1) // frames))
    rows = store.rows(WINDOWS, {"t0": scope.t0, "span": width * SECOND})
    layers = sorted({row["layer"] for row in rows})
    plot = _plot(rows, layers, shape["experts"], width)
    height = 240 + 26 * min(len(layers), 40)
    reduced = f"Every position of the slider covers {width} s." if width > 1 else ""
    return (Figure("experts-heat", "Popularity of experts", plot, height, HOW, reduced),)


def _plot(rows: Rows, layers: list[int], experts: int, width: int) -> go.Figure:
    whole = relative(rows, layers, experts)
    steps = [_step("whole run", whole)]
    for frame in sorted({row["frame"] for row in rows}):
        part = [row for row in rows if row["frame"] == frame]
        steps.append(_step(f"{frame * width}–{(frame + 1) * width} s", relative(part, layers, experts)))
    plot = figure(margin={"l": 64, "r": 20, "t": 16, "b": 110})
    trace = go.Heatmap(
        z=whole, y=[f"layer {layer}" for layer in layers], x=list(range(experts)), zmin=0, zmax=3, meta="balance", xgap=1, ygap=1
    )
    trace.update(
        colorbar={"title": {"text": "× even share"}, "thickness": 12},
        hovertemplate="%{y}, expert %{x}<br>%{z:.2f} × an even share<extra></extra>",
    )
    plot.add_trace(trace)
    plot.update_layout(
        xaxis={"title": {"text": "logical expert"}, "dtick": max(1, experts // 16), "showgrid": False},
        yaxis={"autorange": "reversed", "showgrid": False},
        sliders=[{"steps": steps, "currentvalue": {"prefix": "window: "}, "pad": {"t": 46}, "len": 0.96, "x": 0.02}],
    )
    return plot


def _step(label: str, grid: Grid) -> dict[str, Any]:
    return {"label": label, "method": "restyle", "args": [{"z": [grid]}]}


def relative(rows: Rows, layers: list[int], experts: int) -> Grid:
    """[layer][expert] tokens as a multiple of the layer's mean; None for a layer without tokens."""
    place = {layer: index for index, layer in enumerate(layers)}
    grid = [[0.0] * experts for _ in layers]
    for row in rows:
        grid[place[row["layer"]]][row["expert"]] += row["tokens"]
    means = [sum(line) / experts for line in grid]
    return [[round(value / mean, 2) if mean else None for value in line] for line, mean in zip(grid, means, strict=True)]
