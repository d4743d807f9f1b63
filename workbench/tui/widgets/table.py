"""Keeping a DataTable equal to rows by key: only cells that changed are touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text
from textual.widgets import DataTable


@dataclass(frozen=True, slots=True)
class Column:
    """A column of fixed width: numbers to the right, words to the left."""

    name: str
    width: int
    left: bool = False


def sync(table: DataTable[Any], columns: Sequence[Column], rows: Mapping[str, Sequence[Text]]) -> None:
    """Makes the table show `rows` in their order. The cursor stays on its row."""
    if [(key.value, held.width) for key, held in table.columns.items()] != [(column.name, column.width) for column in columns]:
        table.clear(columns=True)
        for column in columns:
            table.add_column(Text(column.name, justify="left" if column.left else "right"), key=column.name, width=column.width)
    for cells in rows.values():
        for column, cell in zip(columns, cells, strict=True):
            cell.justify = "left" if column.left else "right"
            cell.no_wrap = True
    shown = [key.value for key in table.rows]
    if shown != list(rows):
        _rebuild(table, rows)
        return
    for key, cells in rows.items():
        for column, cell in zip(columns, cells, strict=True):
            if table.get_cell(key, column.name) != cell:
                table.update_cell(key, column.name, cell)


def _rebuild(table: DataTable[Any], rows: Mapping[str, Sequence[Text]]) -> None:
    """Another set of rows, or another order: fills the table again and goes back to the row of the cursor."""
    keys = list(table.rows)
    here = keys[table.cursor_row].value if 0 <= table.cursor_row < len(keys) else None
    top = table.scroll_offset.y
    table.clear()
    for key, cells in rows.items():
        table.add_row(*cells, key=key)
    if here is not None and here in rows:
        table.move_cursor(row=list(rows).index(here), scroll=False)
    table.scroll_to(y=top, animate=False)
