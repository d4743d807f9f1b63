"""Screen 5: the most recent requests, and where the time of one of them went."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import DataTable, Input, Static

from workbench.tui import numbers, palette
from workbench.tui.data import requests
from workbench.tui.data.requests import Detail, Request, Requests
from workbench.tui.feed import Reads
from workbench.tui.filtering import matches
from workbench.tui.screens.base import DataScreen
from workbench.tui.widgets.table import Column, sync
from workbench.tui.widgets.waterfall import Lane, Waterfall

COLUMNS = (
    Column("time", 9), Column("rank", 5), Column("status", 10), Column("in", 6), Column("image", 6), Column("out", 5), Column("queue", 9),
    Column("TTFT", 9), Column("TPOT", 9), Column("total", 9),
)  # fmt: skip
GLYPHS = {"ok": ("✔", ""), "error": ("✖", "bold #ef6f6c"), "cancelled": ("□", "#e6b450")}
COLORS = {
    "queue": "#8a94a0", "tokenize": "#b8a1d9", "image.preprocess": "#cc79a7", "image.encode": "#d987b5", "prefill": palette.PREFILL,
    "decode": palette.DECODE, "preempted": palette.WAITING, "detokenize": "#b8a1d9", "send": "#56b4e9",
}  # fmt: skip


class RequestsScreen(DataScreen[Requests]):
    """A table and a waterfall. `/` filters: words must occur, `ttft>200` compares milliseconds."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "unfilter", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._data: Requests | None = None
        self._chosen: str | None = None
        self._filter = ""

    def body(self) -> ComposeResult:
        with Vertical(id="requests-panel", classes="panel"):
            yield Input(placeholder="rank=2 ttft>200 error", id="filter", compact=True)
            yield DataTable(id="requests", cursor_type="row", cell_padding=0)
        with VerticalScroll(id="waterfall-panel", classes="panel", can_focus=True):
            yield Waterfall(id="waterfall")
            yield Static(id="attributes", markup=False)

    def on_mount(self) -> None:
        self.query_one("#requests-panel").border_title = "requests"
        self.query_one("#filter").display = False
        self.query_one(DataTable).focus()

    def ask(self, store: Reads) -> Requests:
        return requests.read(store, self._chosen)

    def show(self, value: Requests) -> None:
        self._data = value
        self._table()
        self._detail(value.detail)

    def _table(self) -> None:
        if self._data is None:
            return
        rows = [row for row in self._data.rows if matches(self._filter, fields(row))]
        panel = self.query_one("#requests-panel")
        panel.border_subtitle = f"{len(rows)} of the last {len(self._data.rows)}" if self._filter else f"the last {len(self._data.rows)}"
        sync(self.query_one(DataTable), COLUMNS, {row.trace: _cells(row) for row in rows})

    def _detail(self, detail: Detail | None) -> None:
        panel, attributes = self.query_one("#waterfall-panel"), self.query_one("#attributes", Static)
        if detail is None:
            panel.border_title = "no request recorded yet"
            return
        panel.border_title = f"request {detail.trace[:8]}…{detail.trace[-4:]}"
        lanes = [Lane(stage.name, COLORS.get(stage.name, "#8a94a0"), stage.bars) for stage in detail.stages]
        if detail.tokens:
            lanes.append(Lane("tokens", palette.DECODE, marks=detail.tokens))
        self.query_one(Waterfall).show(lanes, detail.total)
        attributes.update(detail.attrs)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        chosen = event.row_key.value if event.row_key is not None else None
        if chosen is not None and chosen != self._chosen:
            self._chosen = chosen
            if self._data is not None and (self._data.detail is None or self._data.detail.trace != chosen):
                self.reload()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_unfilter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = ""
        field.display = False
        self.query_one(DataTable).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._table()

    def on_input_submitted(self) -> None:
        self.query_one(DataTable).focus()


def fields(row: Request) -> dict[str, object]:
    """What a filter sees: times in milliseconds."""
    return {
        "trace": row.trace, "rank": row.rank, "status": row.status, "in": row.input_tokens, "out": row.output_tokens,
        "image": row.image_tokens, "queue": _ms(row.queue), "ttft": _ms(row.ttft), "tpot": _ms(row.tpot), "total": _ms(row.total),
    }  # fmt: skip


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _cells(row: Request) -> tuple[Text, ...]:
    glyph, style = GLYPHS.get(row.status, ("?", ""))
    return (
        Text(datetime.fromtimestamp(row.ts / 1e9).strftime("%H:%M:%S")), Text(numbers.NOTHING if row.rank is None else str(row.rank)),
        Text(f"{glyph} {row.status}", style=style), Text(numbers.count(row.input_tokens)), Text(numbers.count(row.image_tokens or None)),
        Text(numbers.count(row.output_tokens)), Text(numbers.duration(row.queue)), Text(numbers.duration(row.ttft)),
        Text(numbers.duration(row.tpot)), Text(numbers.duration(row.total), style="bold"),
    )  # fmt: skip
