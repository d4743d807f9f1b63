"""Screen 4: the rank that waits least is the slow one."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from workbench.tui import numbers, palette
from workbench.tui.data import ranks
from workbench.tui.data.ranks import SEGMENTS, Ranks, Share, Waits
from workbench.tui.feed import Reads
from workbench.tui.screens.base import DataScreen
from workbench.tui.widgets.stack import stack

WINDOWS: tuple[tuple[int | None, str], ...] = ((60_000_000_000, "60 s"), (None, "all"))
# Letters stand for the segments where colours cannot.
LETTERS = {"attention": "a", "router": "r", "exchange": "x", "dispatch": "d", "experts": "E", "combine": "c"}
COLORS = dict(zip(SEGMENTS, ("#56b4e9", "#999999", "#f0e442", "#009e73", "#e69f00", "#cc79a7"), strict=True))


class RanksScreen(DataScreen[Ranks]):
    """Segments of a layer by rank, and the wait matrix of each collective."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "window", "Window"),
        Binding("left_square_bracket", "layer(-1)", "Layer", key_display="[ ]"),
        Binding("right_square_bracket", "layer(1)", show=False),
        Binding("o", "op", "Collective"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._window, self._op = 0, 0
        self._layer: int | None = None
        self._layers = 0
        self._data: Ranks | None = None

    def body(self) -> ComposeResult:
        with Vertical(id="segments-panel", classes="panel"):
            yield Static("reading …", id="segments", markup=False)
        with VerticalScroll(id="waits-panel", classes="panel", can_focus=True):
            yield Static(id="waits", markup=False)

    def on_mount(self) -> None:
        self.query_one("#segments-panel").border_title = "time in a layer"
        self.query_one("#waits-panel").border_title = "waits"
        self.query_one("#waits-panel").focus()

    def ask(self, store: Reads) -> Ranks:
        self._layers = int(store.rows("SELECT coalesce(max(layer) + 1, 0) AS n FROM placement")[0]["n"])
        return ranks.read(store, WINDOWS[self._window][0], self.workbench.clock(), self._layer)

    def show(self, value: Ranks) -> None:
        self._data = value
        self._draw()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        value = self._data
        if value is None:
            return
        layer = "all layers" if value.layer is None else f"layer {value.layer}"
        panel = self.query_one("#segments-panel")
        panel.border_title = f"time in a layer, {layer}"
        panel.border_subtitle = f"{value.span.words} · {value.steps} detailed steps"
        segments = self.query_one("#segments", Static)
        segments.update(_segments(value.shares, segments.size.width or 90))
        waits = self.query_one("#waits-panel")
        chosen = value.waits[self._op % len(value.waits)] if value.waits else None
        waits.border_title = "waits" if chosen is None else f"waits in {chosen.op}"
        which = f"{self._op % len(value.waits) + 1} of {len(value.waits)}" if value.waits else ""
        waits.border_subtitle = f"collective {which}, o for the next" if len(value.waits) > 1 else ""
        self.query_one("#waits", Static).update(_waits(chosen, [share.rank for share in value.shares]))

    def action_window(self) -> None:
        """A minute, or the whole run."""
        self._window = (self._window + 1) % len(WINDOWS)
        self.reload()

    def action_layer(self, by: int) -> None:
        """One layer after the other; before the first stands the mean of all."""
        here = (-1 if self._layer is None else self._layer) + by
        last = self._layers - 1
        self._layer = None if here == -1 or here > last else last if here < -1 else here
        self.reload()

    def action_op(self) -> None:
        """The next collective."""
        self._op += 1
        self._draw()


def _segments(shares: tuple[Share, ...], width: int) -> Content:
    """One bar a rank, on a common scale."""
    if not shares:
        return Content.styled("no detailed steps in this window: w for the whole run", "$muted")
    room, top = max(width - 37, 10), max(share.total for share in shares)
    legend = Content("  ").join(Content.assemble((f"{LETTERS[name]}", f"bold {COLORS[name]}"), f" {name}") for name in SEGMENTS)
    lines = [legend, Content.styled(f"{'rank':>4}  {'':<{room}}{'layer ms':>10}{'rows':>7}{'µs/row':>9}", "$muted")]
    costs = sorted(share.per_row for share in shares if share.per_row is not None)
    typical = costs[len(costs) // 2] if costs else None
    for share in shares:
        parts = [(LETTERS[name], COLORS[name], ns) for name, ns in zip(SEGMENTS, share.segments, strict=True)]
        slow = share.per_row is not None and typical and share.per_row > 1.15 * typical
        cost = numbers.NOTHING if share.per_row is None else f"{share.per_row / 1e3:.1f}"
        lines.append(Content.assemble(
            f"{share.rank:>4}  ", stack(parts, top, room), f"{numbers.milliseconds(share.total):>10}{share.rows:>7,.0f}",
            (f"{cost:>9}", "bold $warning" if slow else ""),
        ))  # fmt: skip
    return Content("\n").join(lines)


def _waits(waits: Waits | None, names: list[int]) -> Content:
    """The matrix: rows wait, columns are waited for."""
    if waits is None:
        return Content.styled("no collectives of several ranks in this window", "$muted")
    shown = min(len(waits.last), 16)
    top = float(waits.mean.max(initial=0.0))
    mean = float(waits.mean.sum()) / max(len(waits.last) * (len(waits.last) - 1), 1)
    names = names if len(names) == len(waits.last) else list(range(len(waits.last)))
    lines = [Content.styled("mean ms that a rank (row) waits for the last to enter (column)", "$muted")]
    lines.append(Content.styled(f"{'':>8}" + "".join(f"{f'for {rank}':>7} " for rank in names[:shown]) + f"{'total':>9}", "$muted"))
    for row in range(shown):
        cells = [_cell(float(waits.mean[row, column]), top, mean, row == column) for column in range(shown)]
        total = numbers.milliseconds(float(waits.mean[row].sum()))
        lines.append(Content.assemble((f"rank {names[row]:>2} ", "$muted"), *cells, (f"{total:>9}", "bold")))
    lines.append(Content.assemble((f"{'last in':<8}", "$muted"), *(f"{numbers.percent(share):>7} " for share in waits.last[:shown])))
    culprit = int(np.argmax(waits.last))
    if waits.n and waits.last[culprit] > 1.5 / len(waits.last):
        least = " and waits least" if int(waits.mean.sum(axis=1).argmin()) == culprit else ""
        words = f"rank {names[culprit]} enters last in {numbers.percent(waits.last[culprit])} of {waits.n} collectives{least}"
        lines += [Content(""), Content.assemble(("▲ ", "$warning"), (words, "bold"))]
    return Content("\n").join(lines)


def _cell(ns: float, top: float, mean: float, diagonal: bool) -> tuple[str, str]:
    """A wait and its height. What stands out of the mean of all pairs is marked: it is somebody's fault only then."""
    if diagonal or ns <= 0:
        return f"{'·' if diagonal else '0':>7} ", "$faint"
    style = "bold $error" if ns > 2.5 * mean else "bold $warning" if ns > 1.5 * mean else ""
    return f"{numbers.milliseconds(ns):>7}{palette.glyph(ns, top)}", style
