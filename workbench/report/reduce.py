"""How long runs are made small enough to draw. Every function keeps extremes or says what it merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def worst(items: Mapping[Key, Value], limit: int, key: Callable[[Value], float]) -> list[Key]:
    """Up to `limit` keys with the largest `key(value)`, in the mapping's own order."""
    kept = set(sorted(items, key=lambda name: -key(items[name]))[:limit])
    return [name for name in items if name in kept]


def spread(items: Sequence[Value], limit: int) -> list[Value]:
    """Up to `limit` items at even distances, the first and the last among them."""
    if len(items) <= limit:
        return list(items)
    if limit == 1:
        return [items[-1]]
    return [items[round(index * (len(items) - 1) / (limit - 1))] for index in range(limit)]
