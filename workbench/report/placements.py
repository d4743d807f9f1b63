"""Placements: where each version of the expert map put the work, and when it came into force."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from traces.store import Store
from workbench.report.scope import SECOND, Scope
from workbench.report.section import Figure, Table
from workbench.report.side_by_side import axes, lay_out, rank_names
from workbench.report.theme import figure

PLACEMENTS = 4  # versions drawn side by side at most
CELLS = 65_536  # cells of a heat map at most
LABELLED = 256  # cells that still have room for their number

SLOTS = "SELECT layer, rank, rows, placement FROM slot_heat ORDER BY placement, layer, rank"
SOURCES = """
SELECT placement, any_value(source) AS source, any_value(reason) AS reason, sum(moved) AS moved, max(stall) AS stall, min(ts) AS ts
FROM placement GROUP BY placement ORDER BY placement
"""


def items(store: Store, scope: Scope) -> tuple[Figure | Table, ...]:
    return (*_slots(store), *_placements(store, scope))


def _slots(store: Store) -> tuple[Figure, ...]:
    rows = store.rows(SLOTS, limit=1_000_000)
    versions = sorted({row["placement"] for row in rows})[-PLACEMENTS:]
    layers = sorted({row["layer"] for row in rows})
    ranks = 1 + max((row["rank"] for row in rows), default=-1)
    if not rows or ranks * len(layers) > CELLS:
        return ()
    sources = {row["placement"]: row["source"] for row in store.rows(SOURCES)}
    plot = figure(margin={"l": 64, "r": 20, "t": 34, "b": 44})
    for index, version in enumerate(versions):
        grid = _rank_grid([row for row in rows if row["placement"] == version], layers, ranks)
        plot.add_trace(
            go.Heatmap(
                z=grid,
                y=[f"layer {layer}" for layer in layers],
                x=rank_names(ranks, 1),
                **axes(index),
                zmin=0,
                zmax=3,
                meta="balance",
                xgap=2,
                ygap=2,
                showscale=index == 0,
                colorbar={"title": {"text": "× mean"}, "thickness": 12},
                texttemplate="%{z:.2f}" if ranks * len(layers) <= LABELLED else None,
                hovertemplate="%{y}, %{x}<br>%{z:.2f} × the mean rank<extra>placement " + str(version) + "</extra>",
            )
        )
        lay_out(plot, index, len(versions), 0.9, f"placement {version} · {sources.get(version, 'unknown')}")
    left_out = "" if len(versions) == len({row["placement"] for row in rows}) else f"Only the last {PLACEMENTS} placements."
    return (
        Figure(
            "ranks-heat",
            "Load of the ranks under each placement",
            plot,
            120 + 34 * min(len(layers), 30),
            "Rows computed by each rank over the mean rank, per layer, while that placement was in force.",
            left_out,
        ),
    )


def _rank_grid(rows: list[dict[str, Any]], layers: list[int], ranks: int) -> list[list[float | None]]:
    place = {layer: index for index, layer in enumerate(layers)}
    grid = [[0.0] * ranks for _ in layers]
    for row in rows:
        grid[place[row["layer"]]][row["rank"]] += float(row["rows"])
    return [[round(value * ranks / sum(line), 3) if sum(line) else None for value in line] for line in grid]


def _placements(store: Store, scope: Scope) -> tuple[Table, ...]:
    rows = store.rows(SOURCES)
    if len(rows) < 2:
        return ()
    body = tuple(
        (
            row["placement"],
            row["source"],
            f"{(row['ts'] - scope.t0) / SECOND:.1f} s",
            row["moved"],
            f"{row['stall'] / 1e6:.2f} ms",
            row["reason"],
        )
        for row in rows
    )
    return (
        Table(
            "Placements",
            ("version", "source", "in force at", "slots moved", "stall", "reason"),
            body,
            ("version", "in force at", "slots moved", "stall"),
        ),
    )
