"""A series over time as bars of eighth blocks, newest at the right, with its name, its latest value and its peak above."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from workbench.tui import numbers

_EIGHTHS = " ▁▂▃▄▅▆▇█"


class SparkBars(Widget):
    """Bars of one series. A value of None was not measured and is drawn as a dot, which is not a zero."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"sparkbars--label", "sparkbars--value"}
    DEFAULT_CSS = """
    SparkBars { height: 3; }
    SparkBars > .sparkbars--label { color: $text-muted; }
    SparkBars > .sparkbars--value { text-style: bold; }
    """

    def __init__(self, label: str, color: str, *, form: Callable[[float | None], str] = numbers.count, id: str | None = None) -> None:
        super().__init__(id=id)
        self._label, self._color, self._form = label, color, form
        self._values: tuple[float | None, ...] = ()
        self._latest: float | None = None

    def show(self, values: Sequence[float | None], latest: float | None = None) -> None:
        """Draws another series, oldest first; `latest` is the number in the title where it is not the last bar."""
        fresh = tuple(values)
        current = latest if latest is not None else next((v for v in reversed(fresh) if v is not None), None)
        if (fresh, current) != (self._values, self._latest):
            self._values, self._latest = fresh, current
            self.refresh()

    def render_line(self, y: int) -> Strip:
        width, blank = self.size.width, self.rich_style
        if y == 0:
            return Strip(self._title(width)).adjust_cell_length(width, blank)
        height = self.size.height - 1
        bars = reduce_columns(self._values, width)
        top = max((v for v in bars if v is not None), default=0.0)
        floor = y == height
        text = "".join(_block(value, top, height - y, height, floor) for value in bars)
        style = blank + Style(color=self._color)
        return Strip([Segment(" " * (width - len(bars)), blank), Segment(text, style)]).adjust_cell_length(width, blank)

    def _title(self, width: int) -> list[Segment]:
        label, value = self.get_component_rich_style("sparkbars--label"), self.get_component_rich_style("sparkbars--value")
        measured = [v for v in self._values if v is not None]
        now = self._form(self._latest)
        peak = f"peak {self._form(max(measured))}" if measured else ""
        room = width - len(self._label) - len(now) - 1
        return [
            Segment(f"{self._label} ", label),
            Segment(now, value + Style(color=self._color)),
            Segment(f"{peak:>{max(room, 0)}}" if room > len(peak) else "", label),
        ]


def reduce_columns(values: Sequence[float | None], width: int) -> list[float | None]:
    """As many bars as there are columns. Fewer values are stretched; of more, a whole number becomes the mean in one column,
    counted from the newest, so that columns do not change their meaning while time passes.
    """
    total = len(values)
    if not total or width <= 0:
        return []
    if total <= width:
        return [values[column * total // width] for column in range(width)]
    share = max(round(total / width), 1)
    newest = list(values)[::-1][: share * width]
    return [_mean(newest[start : start + share]) for start in range(0, len(newest), share)][::-1]


def _mean(group: Sequence[float | None]) -> float | None:
    measured = [v for v in group if v is not None]
    return sum(measured) / len(measured) if measured else None


def _block(value: float | None, top: float, line: int, height: int, floor: bool) -> str:
    """The glyph of a bar on one of `height` lines, line 0 being the lowest. A value above nothing is always seen."""
    if value is None:
        return "·" if floor else " "
    if top <= 0 or value <= 0:
        return " "
    eighths = max(round(value / top * height * 8), 1) - line * 8
    return _EIGHTHS[max(0, min(eighths, 8))]
