"""Heatmaps side by side in one figure: each has axes and a title of its own, and all have the rows of the first."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go


def axes(index: int) -> dict[str, str]:
    """The axes that the heatmap number `index` is drawn on."""
    return {"xaxis": f"x{_suffix(index)}", "yaxis": f"y{_suffix(index)}"}


def lay_out(plot: go.Figure, index: int, count: int, part: float, title: str, rows: str = "", columns: str = "") -> None:
    """Gives the heatmap number `index` of `count` its place: of its share of the width it takes `part`, the rest is room for a scale.
    `rows` and `columns`: what they are, written at the axes."""
    suffix, width = _suffix(index), 1 / count
    common: dict[str, Any] = {"showgrid": False}
    across = {"domain": [index * width, (index + part) * width], "anchor": f"y{suffix}", "title": {"text": columns}}
    down = {"anchor": f"x{suffix}", "autorange": "reversed", "showticklabels": index == 0, "title": {"text": rows if index == 0 else ""}}
    plot.update_layout({f"xaxis{suffix}": common | across, f"yaxis{suffix}": common | down})
    plot.add_annotation(
        x=(index + part / 2) * width, xref="paper", y=1, yref="paper", yanchor="bottom", xanchor="center", showarrow=False, text=title,
    )  # fmt: skip


def rank_names(ranks: int, group: int) -> list[str]:
    """Of rows and columns that are ranks, merged in groups of `group`."""
    return [f"rank {i * group}" if group == 1 else f"ranks {i * group}+" for i in range(-(-ranks // group))]


def _suffix(index: int) -> str:
    return "" if index == 0 else str(index + 1)
