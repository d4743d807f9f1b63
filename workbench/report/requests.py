"""Requests: a waterfall of some of them, and the latency of each stage over all of them."""

from __future__ import annotations

import plotly.graph_objects as go

from traces.store import Store
from workbench.report import waterfall
from workbench.report.scope import Scope
from workbench.report.section import Figure, Missing, Section, Table
from workbench.report.theme import STAGES, figure
from workbench.report.units import count, duration

TAIL = 30  # fewer samples beyond a quantile than this, and the quantile is not claimed (DESIGN section 5)

STAGE_LATENCY = "SELECT name, n, p50, p90, p99, max, total FROM stage_latency WHERE n > 0 ORDER BY total DESC"
CLIENT = """
SELECT coalesce(phase, '') AS phase, coalesce(kind, '') AS kind, count(*) AS n, count(*) FILTER (status <> 'ok') AS failed,
       quantile_cont(ttft, 0.5) AS ttft50, quantile_cont(ttft, 0.9) AS ttft90,
       quantile_cont(dur, 0.5) AS e50, quantile_cont(dur, 0.9) AS e90, quantile_cont(tpot, 0.5) AS tpot50, min(ts) AS first
FROM client_request GROUP BY ALL ORDER BY first
"""
NO_REQUESTS = Missing("No request was recorded in this run.", "workbench traffic URL")


def section(store: Store, scope: Scope) -> Section:
    lead = "Every request leaves one span per stage. A stage that is long where its neighbours are short is where to look first."
    drawn = waterfall.items(store, scope)
    if not drawn:
        return Section("requests", "Requests", lead, (NO_REQUESTS, *_client(store)))
    return Section("requests", "Requests", lead, (*drawn, *_stages(store), *_client(store)))


def _stages(store: Store) -> tuple[Figure | Missing, ...]:
    rows = [row for row in store.rows(STAGE_LATENCY) if row["name"] in STAGES]
    if not rows:
        return (
            Missing("No request stage was recorded, so stage latencies are not measured.", "workbench serve MODEL, without --no-telemetry"),
        )
    rows.reverse()
    names = [f"{row['name']}  (n = {count(row['n'])})" for row in rows]
    plot = figure(margin={"l": 170, "r": 20, "t": 24, "b": 44})
    for row, name in zip(rows, names, strict=True):
        plot.add_trace(
            go.Scatter(
                x=[row["p50"] / 1e6, row["max"] / 1e6],
                y=[name, name],
                mode="lines",
                showlegend=False,
                hoverinfo="skip",
                line={"width": 6, "color": STAGES[row["name"]]},
                opacity=0.35,
            )
        )
    for key, label, symbol in (
        ("p50", "p50", "circle"),
        ("p90", "p90", "diamond"),
        ("p99", "p99", "square"),
        ("max", "largest", "line-ns-open"),
    ):
        shown = [(row, name) for row, name in zip(rows, names, strict=True) if row["n"] >= _needed(key)]
        if shown:
            plot.add_trace(
                go.Scatter(
                    name=label,
                    mode="markers",
                    x=[row[key] / 1e6 for row, _ in shown],
                    y=[name for _, name in shown],
                    marker={
                        "size": 11,
                        "symbol": symbol,
                        "color": [STAGES[row["name"]] for row, _ in shown],
                        "line": {"width": 1.6, "color": [STAGES[row["name"]] for row, _ in shown]},
                    },
                    hovertext=[f"{row['name']} {label}: {duration(row[key])}" for row, _ in shown],
                    hoverinfo="text",
                )
            )
    plot.update_layout(xaxis={"type": "log", "title": {"text": "ms (logarithmic)"}}, yaxis={"showgrid": False})
    return (
        Figure(
            "stages",
            "Stage latencies",
            plot,
            120 + 30 * len(rows),
            "Median, 90th percentile and largest span of each stage, over all requests.",
            f"A quantile with fewer than {TAIL} samples beyond it is not drawn.",
        ),
    )


def _needed(key: str) -> int:
    return {"p50": 1, "p90": 10 * TAIL, "p99": 100 * TAIL}.get(key, 1)


def _client(store: Store) -> tuple[Table | Missing, ...]:
    rows = store.rows(CLIENT)
    if not rows:
        return (Missing("The client's side was not recorded.", "workbench traffic URL --run RUN"),)
    body = tuple(
        (
            row["phase"] or "–",
            row["kind"] or "–",
            row["n"],
            row["failed"],
            duration(row["ttft50"]),
            duration(row["ttft90"]),
            duration(row["e50"]),
            duration(row["e90"]),
            duration(row["tpot50"]),
        )
        for row in rows
    )
    columns = ("phase", "kind", "requests", "failed", "first token p50", "p90", "whole answer p50", "p90 ", "per token p50")
    return (
        Table(
            "The client's side",
            columns,
            body,
            columns[2:],
            "Measured where the requests were sent, so network and server queueing are inside.",
        ),
    )
