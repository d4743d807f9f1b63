"""Numbers of foreign files, held to what the tables take: anything else is a ValueError, as any other damage of a line."""

from __future__ import annotations

import math

TIMES, RANKS = 1 << 63, 1 << 31


def within(number: int, end: int) -> int:
    """The number, where it is 0 to end - 1."""
    if not 0 <= number < end:
        raise ValueError(f"{number} is not in 0 to {end - 1}")
    return number


def finite(number: float) -> float:
    """The number, where it is one."""
    if not math.isfinite(number):
        raise ValueError(f"{number} is no number")
    return number
