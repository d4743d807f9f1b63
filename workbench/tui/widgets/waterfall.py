"""The stages of one request as bars on a common time axis, with edges to an eighth of a column.

Every lane carries its name and its duration in words, so that colour only helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from workbench.tui import numbers

_LEFT = " ▏▎▍▌▋▊▉█"
_NAME, _TIME = 17, 9


@dataclass(frozen=True, slots=True)
class Lane:
    """A named row: `bars` are (start, end) in ns from the request's start, `marks` are instants."""

    name: str
    color: str
    bars: tuple[tuple[int, int], ...] = ()
    marks: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        return sum(end - start for start, end in self.bars)


class Waterfall(Widget):
    """Lanes over `span` nanoseconds."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"waterfall--label", "waterfall--axis"}
    DEFAULT_CSS = """
    Waterfall { height: auto; }
    Waterfall > .waterfall--label { color: $foreground; }
    Waterfall > .waterfall--axis { color: $text-muted; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lanes: tuple[Lane, ...] = ()
        self._span = 1

    def show(self, lanes: Sequence[Lane], span: int) -> None:
        """Draws other lanes; the same again cost nothing."""
        fresh = tuple(lanes)
        if (fresh, span) != (self._lanes, self._span):
            grown = len(fresh) != len(self._lanes)
            self._lanes, self._span = fresh, max(span, 1)
            self.refresh(layout=grown)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return len(self._lanes) + 1

    def render_line(self, y: int) -> Strip:
        width, blank = self.size.width, self.rich_style
        room = max(width - _NAME - _TIME, 10)
        if y < len(self._lanes):
            lane = self._lanes[y]
            label = self.get_component_rich_style("waterfall--label")
            segments = [Segment(f"{lane.name[: _NAME - 1]:<{_NAME}}", label)]
            segments += self._bars(lane, room, blank)
            words = numbers.duration(lane.total) if lane.bars else f"{len(lane.marks)}"
            segments.append(Segment(f"{words:>{_TIME}}", label))
        elif y == len(self._lanes) and self._lanes:
            segments = [Segment(" " * _NAME + _axis(self._span, room), self.get_component_rich_style("waterfall--axis"))]
        else:
            segments = []
        return Strip(segments).adjust_cell_length(width, blank)

    def _bars(self, lane: Lane, room: int, blank: Style) -> list[Segment]:
        style = blank + Style(color=lane.color)
        text = [" "] * room
        inverse: set[int] = set()
        eighth = self._span / (room * 8)
        for start, end in lane.bars:
            first = min(int(start / eighth), room * 8 - 1)
            last = min(max(int(end / eighth), first + 1), room * 8)
            _fill(text, inverse, first, last)
        for mark in lane.marks:
            text[min(int(mark / eighth / 8), room - 1)] = "╵"
        return [Segment(char, style + Style(reverse=True) if index in inverse else style) for index, char in enumerate(text)]


def _fill(text: list[str], inverse: set[int], first: int, last: int) -> None:
    """Writes a bar from eighth `first` to eighth `last`; a left edge inside a column is the inverse of a left block."""
    column, end = first // 8, (last - 1) // 8
    if column == end:
        text[column] = _LEFT[last - column * 8] if first % 8 == 0 else "▐" if last % 8 == 0 else "▪"
        return
    if first % 8:
        text[column] = _LEFT[first % 8]
        inverse.add(column)
    else:
        text[column] = "█"
    for middle in range(column + 1, end):
        text[middle] = "█"
    text[end] = _LEFT[last - end * 8]


def _axis(span: int, room: int) -> str:
    """Zero, half and the whole, under the bars."""
    line = [" "] * room
    for share, words in ((0.0, "0"), (0.5, numbers.duration(span / 2)), (1.0, numbers.duration(span))):
        at = min(max(int(share * room) - (len(words) // 2 if 0 < share < 1 else 0), 0), room - len(words))
        line[at : at + len(words)] = words
    return "".join(line)
