"""Memory of every rank, by phase."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from traces.store import Store
from workbench.report.reduce import spread
from workbench.report.scope import Scope
from workbench.report.section import Figure, Missing, Section
from workbench.report.theme import MEMORY, figure
from workbench.report.units import size

RANKS = 32  # ranks drawn at most
MIB = 1 << 20

QUERY = """
SELECT m.rank, m.phase, m.rss_anon, m.rss_file, m.rss_shmem, m.hwm, m.cgroup_limit, first.ts
FROM memory_phase m JOIN (SELECT phase, min(ts) AS ts FROM memory GROUP BY phase) first USING (phase)
WHERE m.rank IS NOT NULL ORDER BY first.ts, m.rank
"""
LEAD = (
    "Largest resident memory of each rank in each phase. Anonymous memory is what a limit kills for; "
    "file-backed memory is given back under pressure and never the reason of an out-of-memory kill by itself."
)


def section(store: Store, scope: Scope) -> Section:
    rows = store.rows(QUERY)
    if not rows:
        missing = Missing("Memory by phase was not measured.", "workbench serve MODEL, without --no-telemetry")
        return Section("memory", "Memory by phase", LEAD, (missing,))
    return Section("memory", "Memory by phase", LEAD, (_figure(rows),))


def _figure(rows: list[dict[str, Any]]) -> Figure:
    ranks = sorted({row["rank"] for row in rows})
    shown = spread(ranks, RANKS)
    drawn = [row for row in rows if row["rank"] in set(shown)]
    plot = figure(barmode="stack", margin={"l": 64, "r": 20, "t": 40, "b": 70})
    axis = [[row["phase"] for row in drawn], [str(row["rank"]) for row in drawn]]
    for (name, colour), column in zip(MEMORY.items(), ("rss_anon", "rss_file", "rss_shmem"), strict=True):
        plot.add_trace(
            go.Bar(
                name=name,
                x=axis,
                y=[round(row[column] / MIB, 2) for row in drawn],
                marker={"color": colour, "line": {"width": 0}},
                hovertext=[f"rank {row['rank']}, {row['phase']}: {name} {size(row[column])}" for row in drawn],
                hoverinfo="text",
            )
        )
    limits = {row["cgroup_limit"] for row in drawn if row["cgroup_limit"]}
    peak = max(row["rss_anon"] + row["rss_file"] + row["rss_shmem"] for row in drawn)
    how = "One bar is one rank, grouped by phase in the order of time."
    if limits:
        how += f" The control group's limit is {size(min(limits))}."
        if min(limits) < 4 * peak:
            plot.add_hline(
                y=min(limits) / MIB, line={"dash": "dash", "color": "#d9694f", "width": 1.5}, annotation_text="control group limit"
            )
    plot.update_layout(xaxis={"showgrid": False}, yaxis={"title": {"text": "MiB"}, "rangemode": "tozero"})
    reduced = f"{len(shown)} of {len(ranks)} ranks, evenly spaced." if len(shown) < len(ranks) else ""
    return Figure("memory", "Resident memory of the ranks", plot, 360, how, reduced)
