"""A share as a bar with its number."""

from __future__ import annotations

from rich.text import Text

from workbench.tui import numbers

_LEFT = " ▏▎▍▌▋▊▉█"


def gauge(used: float, total: float, width: int, color: str = "#5fb3d9") -> Text:
    """`████▌·····  45 %`: full columns, an eighth at the edge, dots for what is free. Above 90 % it is red, and says so."""
    if total <= 0:
        return Text(numbers.NOTHING)
    share = min(max(used / total, 0.0), 1.0)
    full = bar(share, 1.0, width)
    tint = "#ef6f6c" if share > 0.9 else color
    return Text.assemble((full, tint), ("·" * (width - len(full)), "dim"), f" {numbers.percent(share):>5}")


def bar(value: float, top: float, width: int) -> str:
    """A value as a bar of at most `width` columns, to an eighth; a value above nothing is never blank."""
    if top <= 0 or value <= 0:
        return ""
    eighths = max(round(min(value / top, 1.0) * width * 8), 1)
    return "█" * (eighths // 8) + (_LEFT[eighths % 8] if eighths % 8 else "")
