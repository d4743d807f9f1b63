"""Numbers as people read them in a column: short, with their unit, a dash where nothing was measured."""

from __future__ import annotations

NOTHING = "–"
_SECOND = 1e9


def count(value: float | None) -> str:
    """12,345 · 123k · 4.5M."""
    if value is None:
        return NOTHING
    if abs(value) < 100_000:
        return f"{value:,.0f}"
    if abs(value) < 1e6:
        return f"{value / 1e3:,.0f}k"
    if abs(value) < 1e9:
        return f"{value / 1e6:,.1f}M"
    return f"{value / 1e9:,.1f}G"


def milliseconds(ns: float | None) -> str:
    """A number of milliseconds without its unit, for a column headed ms: three significant digits."""
    if ns is None:
        return NOTHING
    value = ns / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def duration(ns: float | None) -> str:
    """812 µs · 12.3 ms · 1.24 s · 3m 12s · 1h 02m · 4d 03h, from nanoseconds."""
    if ns is None:
        return NOTHING
    if ns < 999_500:
        return f"{ns / 1e3:.0f} µs"
    if ns < 0.9995 * _SECOND:
        return f"{milliseconds(ns)} ms"
    seconds = ns / _SECOND
    if seconds < 99.5:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    return span(ns)


def span(ns: float) -> str:
    """Whole seconds, minutes, hours or days: 12s · 3m 12s · 1h 02m · 4d 03h, from nanoseconds."""
    total = max(int(ns / _SECOND), 0)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m {total % 60:02d}s"
    if total < 86400:
        return f"{total // 3600}h {total % 3600 // 60:02d}m"
    return f"{total // 86400}d {total % 86400 // 3600:02d}h"


def size(value: float | None) -> str:
    """Bytes in binary units: 812 MiB."""
    if value is None:
        return NOTHING
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if amount >= 100 or unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def percent(share: float | None) -> str:
    """A share of one: 4.2 % · 45 %."""
    if share is None:
        return NOTHING
    return f"{share * 100:.0f} %" if share >= 0.0995 or share == 0 else f"{share * 100:.1f} %"


def times(ratio: float | None) -> str:
    """A ratio: 1.84×."""
    return NOTHING if ratio is None else f"{ratio:.2f}×"
