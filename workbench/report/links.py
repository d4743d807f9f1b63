"""Links: what every ordered pair of ranks reaches, alone and while all send, and how long a small message takes (`workbench fabric`)."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from traces.store import Store
from workbench.report.scope import Scope
from workbench.report.section import Figure, Missing, Section
from workbench.report.side_by_side import axes, lay_out, rank_names
from workbench.report.theme import figure

SIDE = 64  # ranks on a side of a map at most
PART = 0.8  # of its share of the width that a map takes; the scale stands in the rest

# Of the largest message the bandwidth, of the smallest the latency: a mean over sizes would mix one into the other.
PAIRS = """
SELECT src, dst, median(bandwidth) FILTER (NOT concurrent) / 1e6 AS alone, median(bandwidth) FILTER (concurrent) / 1e6 AS together,
       arg_min(latency, size) FILTER (NOT concurrent) * 1e6 AS latency
FROM link WHERE src <> dst GROUP BY src, dst ORDER BY src, dst
"""
HOSTS = "SELECT rank, any_value(host) AS host FROM resource WHERE rank IS NOT NULL GROUP BY rank"
TRIED = "SELECT count(*) AS n FROM event WHERE kind = 'fabric.reach'"
# (column, words, unit, whether more is worse)
MAPS = (
    ("alone", "bandwidth alone", "MB/s", False),
    ("together", "bandwidth while all send", "MB/s", False),
    ("latency", "latency", "µs", True),
)
LEAD = (
    "An all-to-all ends with its slowest path. A row that is faint is a host that sends slowly, a column one that receives slowly, a "
    "single cell a path; what is faint only while all send shares a link with others."
)


def section(store: Store, scope: Scope) -> Section | None:
    """None for a run in which no links were measured."""
    rows = store.rows(PAIRS, limit=1_000_000)
    if rows:
        hosts = {row["rank"]: row["host"] for row in store.rows(HOSTS)}
        return Section("links", "Links between ranks", LEAD, (_maps(rows, hosts),))
    if store.rows(TRIED)[0]["n"]:
        gap = Missing("Links were not measured: pairs of ranks do not connect.", "workbench diagnose cross-node-throughput")
        return Section("links", "Links between ranks", LEAD, (gap,))
    return None


def _maps(rows: list[dict[str, Any]], hosts: dict[int, str]) -> Figure:
    ranks = 1 + max(max(row["src"], row["dst"]) for row in rows)
    group = max(1, -(-ranks // SIDE))
    names = rank_names(ranks, group)
    places = [hosts.get(i * group, "") for i in range(len(names))]
    shown = [one for one in MAPS if any(row[one[0]] is not None for row in rows)]
    grids = {column: _grid(rows, column, ranks, group, worse) for column, _, _, worse in shown}
    tops: dict[str, float] = {}
    for column, _, unit, _ in shown:
        tops[unit] = max(tops.get(unit, 0.0), *(value for line in grids[column] for value in line if value is not None))
    plot = figure(margin={"l": 74, "r": 20, "t": 34, "b": 54})
    width = 1 / len(shown)
    for index, (column, words, unit, _) in enumerate(shown):
        last = index + 1 == len(shown) or shown[index + 1][2] != unit  # maps of one unit share a scale, beside the last of them
        plot.add_trace(
            go.Heatmap(
                z=grids[column],
                x=names,
                y=names,
                **axes(index),
                zmin=0,
                zmax=tops[unit],
                meta="heat",
                xgap=2,
                ygap=2,
                showscale=last,
                colorbar={"title": {"text": unit}, "thickness": 12, "x": (index + PART) * width, "xanchor": "left"},
                texttemplate="%{z:.3s}" if len(names) <= 8 else None,
                customdata=[[f"{a} to {b}" if a != b else a for b in places] for a in places],
                hovertemplate=f"%{{y}} to %{{x}}: %{{z:.4s}} {unit} {words}<br>%{{customdata}}<extra></extra>",
            )
        )
        lay_out(plot, index, len(shown), PART, f"{words}, {unit}", "sends", "receives")
    reduced = f"Every cell is the worst of {group} neighbouring ranks a side." if group > 1 else ""
    how = "Every ordered pair: bandwidth of the largest message, where a strong cell is good; latency of the smallest, where it is bad."
    return Figure("links", "What every path carries", plot, 380, how, reduced)


def _grid(rows: list[dict[str, Any]], column: str, ranks: int, group: int, worse: bool) -> list[list[float | None]]:
    """[src][dst], ranks merged in groups of `group`, of which the worst pair is kept; None where none was measured."""
    side = -(-ranks // group)
    grid: list[list[float | None]] = [[None] * side for _ in range(side)]
    for row in rows:
        if row[column] is not None:
            a, b, value = row["src"] // group, row["dst"] // group, round(row[column], 2)
            known = grid[a][b]
            grid[a][b] = value if known is None else max(known, value) if worse else min(known, value)
    return grid
