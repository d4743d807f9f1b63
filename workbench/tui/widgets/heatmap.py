"""A heatmap of rows (layers) x columns (experts or slots), drawn in half blocks by the line API.

Styles are built once per ramp (a table of pairs of levels), a narrow screen bins by maximum, a wide one writes the number
into the cell. Without usable colours a cell is a bar glyph, so that the picture stays ordered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from workbench.tui import palette
from workbench.tui.terminal import plain
from workbench.tui.widgets import heatmap_cells
from workbench.tui.widgets.heatmap_layout import columns, rows

_CURSOR, _BLANK = palette.LEVELS, palette.LEVELS + 1
_BOLD = Style(bold=True)
_NOTE_WIDTH = 8
_HEADER, _FOOTER = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """What a heatmap shows. `values` [rows, columns]: ratio to the row's mean, NaN where nothing was measured."""

    values: NDArray[np.float64]
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]
    group_names: tuple[str, ...] = ("",)
    notes: tuple[str, ...] = ()
    note_title: str = ""

    @property
    def top(self) -> float:
        """The value of the hottest level: at least twice the mean, so that an even load never looks hot."""
        return max(2.0, float(np.nanmax(self.values))) if np.isfinite(self.values).any() else 2.0


class Heatmap(Widget, can_focus=True):
    """Heat with a cursor. Arrow keys and the mouse move the cursor; `Moved` says where it is."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"heatmap--label", "heatmap--strong", "heatmap--blank"}
    DEFAULT_CSS = """
    Heatmap { height: 1fr; }
    Heatmap > .heatmap--label { color: $text-muted; }
    Heatmap > .heatmap--strong { color: $accent; text-style: bold; }
    Heatmap > .heatmap--blank { color: $text-disabled; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1, 0)", show=False),
        Binding("down", "move(1, 0)", show=False),
        Binding("left", "move(0, -1)", show=False),
        Binding("right", "move(0, 1)", show=False),
        Binding("home", "hottest", show=False),
    ]

    class Moved(Message):
        """The cursor is at another cell."""

        def __init__(self, row: int, column: int) -> None:
            super().__init__()
            self.row, self.column = row, column

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._heat: Heat | None = None
        self._cells: NDArray[np.float64] = np.zeros((0, 0))
        self._x, self._y = columns(0, 1), rows(0, 1)
        self.row, self.column = 0, 0
        self._words = "reading …"

    @property
    def heat(self) -> Heat | None:
        return self._heat

    def show(self, heat: Heat) -> None:
        """Draws another heat; the same values again cost nothing."""
        old, self._heat = self._heat, heat
        if old is not None and old.values.shape == heat.values.shape:
            same = np.array_equal(old.values, heat.values, equal_nan=True)
            if same and (old.row_names, old.column_names, old.notes, old.group_names) == (
                heat.row_names, heat.column_names, heat.notes, heat.group_names,
            ):  # fmt: skip
                return
        self._arrange()
        self.refresh()

    def clear(self, words: str) -> None:
        """Shows why there is nothing to show."""
        self._heat, self._cells, self._words = None, np.zeros((0, 0)), words
        self.refresh()

    def step_row(self, by: int) -> None:
        """To the next row itself, even where several share a line."""
        self.place(self.row + by, self.column)

    def _arrange(self) -> None:
        if self._heat is None or not self._heat.values.size:
            self._cells = np.zeros((0, 0))
            return
        values = self._heat.values
        room = self.size.width - self._gutter - (_NOTE_WIDTH if self._heat.notes else 0)
        self._x = columns(values.shape[1], room, len(self._heat.group_names))
        self._y = rows(values.shape[0], self.size.height - _HEADER - _FOOTER, half=not plain(self.app))
        filled = np.where(np.isnan(values), -1.0, values)
        by_row = np.maximum.reduceat(filled, [first for first, _ in self._y.bins], axis=0)
        self._cells = np.maximum.reduceat(by_row, [first for first, _ in self._x.bins], axis=1)
        self.row = min(self.row, values.shape[0] - 1)
        self.column = min(self.column, values.shape[1] - 1)

    @property
    def _gutter(self) -> int:
        return max((len(name) for name in self._heat.row_names), default=0) + 1 if self._heat else 0

    def on_resize(self) -> None:
        self._arrange()

    def action_move(self, row: int, column: int) -> None:
        """Moves by bins, so that every press is seen."""
        if not self._cells.size:
            return
        vertical, horizontal = self._y.bin_of(self.row) + row, self._x.bin_of(self.column) + column
        if row and 0 <= vertical < len(self._y.bins):
            self.place(self._y.bins[vertical][0], self.column)
        if column and 0 <= horizontal < len(self._x.bins):
            self.place(self.row, self._hottest_in(horizontal))

    def _hottest_in(self, bin_index: int) -> int:
        """The hottest column of a bin in the current row: the one the bin's colour is of."""
        assert self._heat is not None
        first, end = self._x.bins[bin_index]
        part = np.nan_to_num(self._heat.values[self.row, first:end], nan=-1.0)
        return first + int(part.argmax())

    def action_hottest(self) -> None:
        """To the hottest cell of all."""
        if self._heat is not None and np.isfinite(self._heat.values).any():
            row, column = np.unravel_index(int(np.nanargmax(self._heat.values)), self._heat.values.shape)
            self.place(int(row), int(column))

    def place(self, row: int, column: int) -> None:
        """Puts the cursor on a cell; cells outside are clamped."""
        if self._heat is None or not self._heat.values.size:
            return
        height, width = self._heat.values.shape
        self.row, self.column = max(0, min(row, height - 1)), max(0, min(column, width - 1))
        self.refresh()
        self.post_message(self.Moved(self.row, self.column))

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or not self._cells.size:
            return
        row = self._y.bin_at((offset.y - _HEADER) * 2)
        column = self._x.bin_at(offset.x - self._gutter)
        if row is not None and column is not None:
            self.row = self._y.bins[row][0]
            self.place(self.row, self._hottest_in(column))

    # -- drawing ------------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width, blank = self.size.width, self.rich_style
        heat, label = self._heat, self.get_component_rich_style("heatmap--label")
        if heat is None or not self._cells.size:
            text = self._words if y == 1 else ""
            return Strip([Segment(text, label)]).adjust_cell_length(width, blank)
        lines = -(-self._y.length // 2)
        if y == 0:
            segments = self._header(heat, label)
        elif y <= lines:
            segments = self._line(heat, y - 1, label)
        elif y == lines + _FOOTER:
            segments = self._legend(heat, label)
        else:
            segments = []
        return Strip(segments).adjust_cell_length(width, blank)

    def _header(self, heat: Heat, label: Style) -> list[Segment]:
        room = self._x.length
        line = [" "] * (self._gutter + room)
        if len(heat.group_names) > 1:
            per_group = len(self._x.bins) // len(heat.group_names)
            marks = [(self._x.starts[i * per_group], name) for i, name in enumerate(heat.group_names)]
        else:
            names = [heat.column_names[first] for first, _ in self._x.bins]
            marks = [(start + max(self._x.size - len(name), 0) // 2, name) for start, name in zip(self._x.starts, names, strict=True)]
        free = 0
        for start, name in marks:
            if start >= free and start + len(name) <= room:
                line[self._gutter + start : self._gutter + start + len(name)] = name
                free = start + len(name) + 1
        text = "".join(line)
        if heat.notes:
            text = f"{text} {heat.note_title:>{_NOTE_WIDTH - 1}}"
        return [Segment(text, label)]

    def _line(self, heat: Heat, line: int, label: Style) -> list[Segment]:
        upper, lower = self._y.bin_at(line * 2), self._y.bin_at(line * 2 + 1)
        assert upper is not None
        here = self._y.bin_of(self.row)
        strong = self.get_component_rich_style("heatmap--strong")
        labelled = next((b for b in (upper, lower) if b is not None and self._middle(b) == line), None)
        if here in (upper, lower) and self._middle(here) == line:
            labelled = here
        name = heat.row_names[self._y.bins[labelled][0]] if labelled is not None else ""
        segments = [Segment(f"{name:>{self._gutter - 1}} ", strong if labelled == here else label)]
        if self._y.size > 1 or plain(self.app):
            segments += self._filled(upper, here, line)
        else:
            segments += self._halves(upper, lower, here)
        if heat.notes and labelled is not None:
            segments.append(Segment(f" {heat.notes[self._y.bins[labelled][0]]:>{_NOTE_WIDTH - 1}}", strong if labelled == here else label))
        return segments

    def _middle(self, row: int) -> int:
        """The text line in the middle of a row, where its name and its numbers stand."""
        return (self._y.starts[row] + max(self._y.size - 1, 0) // 2) // 2

    def _halves(self, upper: int, lower: int | None, here: int) -> list[Segment]:
        """A line of two rows: the foreground is the upper row, the background the lower."""
        table = palette.pair_styles(self._ramp())
        top, cursor = self._heat.top if self._heat else 1.0, self._x.bin_of(self.column)
        segments, blank = [], self.rich_style
        end = 0
        for index, start in enumerate(self._x.starts):
            if start > end:
                segments.append(Segment(" " * (start - end), blank))
            pair = []
            for row in (upper, lower):
                if row is None:
                    pair.append(_BLANK)
                elif row == here and index == cursor and self.has_focus:
                    pair.append(_CURSOR)
                else:
                    value = self._cells[row, index]
                    pair.append(_BLANK if value < 0 else palette.level(value, top))
            segments.append(Segment("▀" * self._x.size, table[pair[0]][pair[1]]))
            end = start + self._x.size
        return segments

    def _filled(self, row: int, here: int, line: int) -> list[Segment]:
        """A line of one row: cells are filled, and carry their number where it fits."""
        top, cursor = self._heat.top if self._heat else 1.0, self._x.bin_of(self.column)
        middle, lines = self._middle(row) == line, self._y.size // 2
        bare, fills = plain(self.app), palette.fill_styles(self._ramp())
        segments, blank = [], self.rich_style
        end = 0
        for index, start in enumerate(self._x.starts):
            if start > end:
                segments.append(Segment(" " * (start - end), blank))
            value, marked = float(self._cells[row, index]), row == here and index == cursor
            if bare:
                text = heatmap_cells.bars(value, top, self._x.size, line - self._y.starts[row] // 2, lines, marked)
                style = blank + Style(reverse=marked and (self._x.size < 4 or lines < 2 or line * 2 == self._y.starts[row]))
            else:
                text = heatmap_cells.filled(value, self._x.size, middle, marked)
                style = blank if value < 0 else fills[_CURSOR if marked and self._x.size < 3 else palette.level(value, top)]
            segments.append(Segment(text, style + _BOLD if marked else style))
            end = start + self._x.size
        return segments

    def _legend(self, heat: Heat, label: Style) -> list[Segment]:
        segments = [Segment(" " * self._gutter + "0× ", label)]
        if plain(self.app):
            segments.append(Segment(palette.GLYPHS[1:], self.rich_style))
        else:
            segments += [Segment("█", Style(color=stop, bgcolor=stop)) for stop in self._ramp()[: palette.LEVELS]]
        shared = max(end - first for first, end in self._x.bins), max(end - first for first, end in self._y.bins)
        binned = f" · a cell is the hottest of {shared[0] * shared[1]}" if shared != (1, 1) else ""
        segments.append(Segment(f" {heat.top:.1f}×   1× = an even share of the layer{binned}", label))
        return segments

    def _ramp(self) -> tuple[str, ...]:
        dark = self.app.current_theme.dark
        ramp = palette.DARK if dark else palette.LIGHT
        background = self.background_colors[1].hex6
        return (*ramp, "#ffffff" if dark else "#000000", background)
