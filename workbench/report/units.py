"""Numbers as people read them."""

from __future__ import annotations

NANO = 1e-9


def duration(ns: float | None) -> str:
    """Nanoseconds with a unit that leaves three digits: 830 ns, 12.4 µs, 3.10 ms, 2.41 s, 3 min 20 s."""
    if ns is None:
        return "not measured"
    if ns < 1_000:
        return f"{ns:.0f} ns"
    for limit, scale, unit in ((1e6, 1e3, "µs"), (1e9, 1e6, "ms"), (120e9, 1e9, "s")):
        if ns < limit:
            return f"{ns / scale:.3g} {unit}" if ns / scale < 100 else f"{ns / scale:.0f} {unit}"
    minutes, seconds = divmod(round(ns * NANO), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def size(count: float | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return "not measured"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def count(value: float | None) -> str:
    """A count with thousands separated: 12,345."""
    return "not measured" if value is None else f"{value:,.0f}"


def number(value: object) -> str:
    """Any observed value: numbers to four digits, nothing as an en dash, the rest as text."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
