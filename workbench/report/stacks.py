"""Sampled stacks as an icicle: where the threads of the ranks were."""

from __future__ import annotations

import plotly.graph_objects as go

from traces.store import Store
from workbench.report.scope import Scope
from workbench.report.section import Figure, Section
from workbench.report.theme import figure

NODES = 1_500  # frames drawn at most
QUERY = "SELECT coalesce('rank ' || rank, resource_id) AS owner, frames, count(*) AS n FROM stack GROUP BY ALL ORDER BY n DESC"


def section(store: Store, scope: Scope) -> Section | None:
    """None when no stack was sampled: stacks are taken on demand, so their absence is no gap."""
    rows = store.rows(QUERY)
    if not rows:
        return None
    weight: dict[tuple[str, ...], int] = {}
    for row in rows:
        path = (row["owner"], *row["frames"])
        for depth in range(1, len(path) + 1):
            weight[path[:depth]] = weight.get(path[:depth], 0) + row["n"]
    kept = sorted(weight, key=lambda path: (-weight[path], len(path)))[:NODES]
    plot = figure(margin={"l": 8, "r": 8, "t": 8, "b": 8})
    plot.add_trace(
        go.Icicle(
            ids=["\x1f".join(path) for path in kept],
            parents=["\x1f".join(path[:-1]) for path in kept],
            labels=[path[-1] for path in kept],
            values=[weight[path] for path in kept],
            branchvalues="total",
            tiling={"orientation": "v"},
            hovertemplate="%{label}<br>%{value} samples<extra></extra>",
        )
    )
    reduced = f"The {NODES} most frequent of {len(weight)} frames." if len(kept) < len(weight) else ""
    lead = "Stacks that py-spy took while the run was live, outermost frame on top. Width is how often a frame was seen."
    return Section(
        "stacks", "Stacks", lead, (Figure("stacks-icicle", "Sampled stacks", plot, 460, "Click a frame to look inside.", reduced),)
    )
