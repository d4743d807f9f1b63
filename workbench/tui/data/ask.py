"""Asking the store for rows of plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from workbench.tui.feed import Reads


def ask(store: Reads, sql: str, params: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Rows as dicts. Sums of BIGINT come back as decimals of no fraction: they are made int here, once."""
    return [{name: _plain(value) for name, value in row.items()} for row in store.rows(sql, list(params))]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, Decimal) else value
