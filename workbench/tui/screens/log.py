"""Screen 6: what the ranks and this screen have said."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, RichLog

from workbench.tui.data import logs
from workbench.tui.data.logs import Line
from workbench.tui.feed import Reads
from workbench.tui.screens.base import DataScreen

STYLES = {"ERROR": "bold #ef6f6c", "CRITICAL": "bold #ef6f6c", "WARNING": "#e6b450", "DEBUG": "dim", "TRACE": "dim"}


class LogScreen(DataScreen[tuple[Line, ...]]):
    """The run's log and the workbench's own, by time. `/` filters."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "unfilter", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._lines: tuple[Line, ...] = ()
        self._written: tuple[Line, ...] = ()
        self._filter = ""

    def body(self) -> ComposeResult:
        with Vertical(id="log-panel", classes="panel"):
            yield Input(placeholder="words that must occur", id="filter", compact=True)
            yield RichLog(id="lines", wrap=False, max_lines=2000)

    def on_mount(self) -> None:
        self.query_one("#log-panel").border_title = "log"
        self.query_one("#filter").display = False
        self.query_one(RichLog).focus()

    def ask(self, store: Reads) -> tuple[Line, ...]:
        return logs.read(store)

    def show(self, value: tuple[Line, ...]) -> None:
        own = tuple(self.workbench.own_log)
        self._lines = tuple(sorted({*value, *own}, key=lambda line: line.ts))
        self._draw()

    def _draw(self) -> None:
        words = self._filter.lower().split()
        lines = tuple(line for line in self._lines if all(word in line.text.lower() for word in words))
        view = self.query_one(RichLog)
        fresh = lines[len(self._written) :] if lines[: len(self._written)] == self._written else None
        if fresh is None:
            view.clear()
            fresh = lines
        for line in fresh:
            view.write(_line(line))
        self._written = lines
        self.query_one("#log-panel").border_subtitle = f"{len(lines)} line{'' if len(lines) == 1 else 's'}"

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_unfilter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = ""
        field.display = False
        self.query_one(RichLog).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        self.query_one(RichLog).focus()


def _line(line: Line) -> Text:
    clock = datetime.fromtimestamp(line.ts / 1e9).strftime("%H:%M:%S")
    level = (f"{line.level:<8}", STYLES.get(line.level, ""))
    return Text.assemble((f"{clock} ", "dim"), level, (f"{line.source:<10} ", "#4cc9b0"), line.message)
