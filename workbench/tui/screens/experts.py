"""Screen 2: which experts work, and which rank carries them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widgets import Static

from workbench.tui import numbers
from workbench.tui.data import experts
from workbench.tui.data.experts import Experts
from workbench.tui.feed import Reads
from workbench.tui.screens.base import DataScreen
from workbench.tui.widgets.gauge import bar
from workbench.tui.widgets.heatmap import Heat, Heatmap

WINDOWS: tuple[tuple[int | None, str], ...] = ((10_000_000_000, "last 10 s"), (None, "whole run"))


class ExpertsScreen(DataScreen[Experts | None]):
    """The heatmap, and the numbers of the cell under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "mode", "Slots"),
        Binding("w", "window", "Window"),
        Binding("left_square_bracket", "layer(-1)", "Layer", key_display="[ ]"),
        Binding("right_square_bracket", "layer(1)", show=False),
        Binding("less_than_sign", "rank(-1)", "Rank", key_display="< >"),
        Binding("greater_than_sign", "rank(1)", show=False),
        Binding("home", "hottest", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._window, self._slots = 0, False
        self._data: Experts | None = None
        self._placed = False

    def body(self) -> ComposeResult:
        with Container(id="heat-and-cell"):
            with Vertical(id="heat-panel", classes="panel"):
                yield Heatmap(id="heat")
            with Container(id="cell-panel", classes="panel"):
                yield Static(id="cell", markup=False)
                yield Static(id="cell-ranks", markup=False)
        yield Static(id="heat-summary", markup=False)

    def on_mount(self) -> None:
        self.query_one("#cell-panel").border_title = "cell"
        self.query_one(Heatmap).focus()
        self._titles()

    def ask(self, store: Reads) -> Experts | None:
        return experts.read(store, WINDOWS[self._window][0], self.workbench.clock())

    def show(self, value: Experts | None) -> None:
        self._data = value
        heatmap = self.query_one(Heatmap)
        self._titles()
        if value is None:
            heatmap.clear(f"no tokens in the {WINDOWS[self._window][1]}: w for another window")
            self._describe()
            return
        heatmap.show(_heat(value, self._slots))
        if not self._placed:
            self._placed = True
            heatmap.action_hottest()
        self._describe()

    def _titles(self) -> None:
        panel = self.query_one("#heat-panel")
        version = "" if self._data is None else f", placement v{self._data.placement}"
        panel.border_title = f"rows computed by each rank's slots{version}" if self._slots else "tokens routed to each expert"
        panel.border_subtitle = WINDOWS[self._window][1]

    def on_heatmap_moved(self) -> None:
        self._describe()

    def _describe(self) -> None:
        """The cell under the cursor, and the line below the map."""
        heatmap, data = self.query_one(Heatmap), self._data
        cell, ranks, summary = (self.query_one(name, Static) for name in ("#cell", "#cell-ranks", "#heat-summary"))
        if data is None:
            for part in (cell, ranks, summary):
                part.update("")
            return
        row = min(heatmap.row, len(data.layers) - 1)
        lines = _slot_lines(data, row, heatmap.column) if self._slots else _expert_lines(data, row, heatmap.column)
        cell.update(Content("\n").join(lines))
        ranks.update(Content("\n").join(_rank_lines(data, row, ranks.size.height or 8)))
        summary.update(_summary(data))

    def action_mode(self) -> None:
        """Logical experts, or the slots of the ranks. The cursor stays on the same weights."""
        heatmap, data = self.query_one(Heatmap), self._data
        self._slots = not self._slots
        self._titles()
        if data is None:
            return
        row, column = heatmap.row, heatmap.column
        if self._slots:
            places = np.flatnonzero(data.served[row] == column)
            column = int(places[0]) if places.size else 0
        elif data.served[row, column] >= 0:
            column = int(data.served[row, column])
        heatmap.show(_heat(data, self._slots))
        heatmap.place(row, column)

    def action_window(self) -> None:
        """The last ten seconds, or the whole run."""
        self._window = (self._window + 1) % len(WINDOWS)
        self._titles()
        self.reload()

    def action_layer(self, by: int) -> None:
        self.query_one(Heatmap).step_row(by)

    def action_rank(self, by: int) -> None:
        """To the busiest slot (or expert) of the next rank, in the same layer."""
        heatmap, data = self.query_one(Heatmap), self._data
        if data is None:
            return
        row = heatmap.row
        if self._slots:
            here = heatmap.column // data.slots
        else:
            served = data.slots_of(row, heatmap.column)
            here = data.ranks.index(served[0][0]) if served else 0
        rank = (here + by) % len(data.ranks)
        first = rank * data.slots
        slot = first + int(data.rows[row, first : first + data.slots].argmax())
        heatmap.place(row, slot if self._slots else max(int(data.served[row, slot]), 0))

    def action_hottest(self) -> None:
        self.query_one(Heatmap).action_hottest()


def _heat(data: Experts, slots: bool) -> Heat:
    counts = data.rows if slots else data.tokens
    names = tuple(str(i % data.slots) for i in range(counts.shape[1])) if slots else tuple(str(i) for i in range(counts.shape[1]))
    groups = tuple(f"rank {rank}" for rank in data.ranks) if slots else ("",)
    notes = tuple(numbers.times(None if np.isnan(r) else float(r)) for r in data.rank_imbalance)
    return Heat(experts.ratio(counts), tuple(f"L{layer}" for layer in data.layers), names, groups, notes, "rank×")


def _facts(pairs: list[tuple[str, str]]) -> list[Content]:
    return [Content.assemble((f"{name:<10}", "$muted"), value) for name, value in pairs]


def _expert_lines(data: Experts, row: int, expert: int) -> list[Content]:
    tokens, total = int(data.tokens[row, expert]), int(data.tokens[row].sum())
    even = 1 / data.tokens.shape[1]
    share = tokens / total if total else None
    served = ", ".join(f"rank {rank} slot {slot}" for rank, slot in data.slots_of(row, expert)) or "not recorded"
    title = Content.styled(f"layer {data.layers[row]} · expert {expert}", "bold $primary")
    return [title, *_facts([
        ("tokens", numbers.count(tokens)), ("share", f"{numbers.percent(share)}, even is {numbers.percent(even)}"),
        ("served by", served), ("ranks", _chance(data, row)),
    ])]  # fmt: skip


def _slot_lines(data: Experts, row: int, column: int) -> list[Content]:
    rows, total = int(data.rows[row, column]), int(data.rows[row].sum())
    share = rows / total if total else None
    rank, slot = data.ranks[column // data.slots], column % data.slots
    expert = int(data.served[row, column])
    title = Content.styled(f"layer {data.layers[row]} · rank {rank} slot {slot}", "bold $primary")
    return [title, *_facts([
        ("rows", numbers.count(rows)), ("share", f"{numbers.percent(share)}, even is {numbers.percent(1 / data.rows.shape[1])}"),
        ("holds", f"expert {expert}" if expert >= 0 else "not recorded"), ("ranks", _chance(data, row)),
    ])]  # fmt: skip


def _chance(data: Experts, row: int) -> str:
    """How often the ranks of a layer are further apart than a uniform router would put them."""
    above = float(data.above_null[row])
    return "not measured" if np.isnan(above) else f"uneven in {numbers.percent(above)} of steps"


def _rank_lines(data: Experts, row: int, room: int) -> list[Content]:
    """Rows of the layer per rank as bars: the imbalance that a step feels. The busiest ranks where not all have room."""
    rows = data.rank_rows[row]
    total, top = int(rows.sum()), int(rows.max(initial=0))
    imbalance = float(data.rank_imbalance[row])
    words = Content.assemble(
        ("rows by rank, busiest/mean ", "$muted"), (numbers.times(None if np.isnan(imbalance) else imbalance), "bold")
    )
    shown = sorted(np.argsort(-rows)[: max(room - 1, 2)])
    lines = [words]
    for index in shown:
        share = numbers.percent(int(rows[index]) / total if total else None)
        style = "$accent" if int(rows[index]) == top and top * len(rows) > 1.15 * total else "$secondary"
        lines.append(Content.assemble(f"{data.ranks[index]:>3} ", (f"{bar(int(rows[index]), top, 20):<20}", style), f"{share:>6}"))
    return lines


def _summary(data: Experts) -> Content:
    """The worst of the whole map in one line."""
    load = experts.ratio(data.tokens)
    if not np.isfinite(load).any() or not np.isfinite(data.rank_imbalance).any():
        return Content.styled("no tokens in this window", "$muted")
    row, expert = np.unravel_index(int(np.nanargmax(load)), load.shape)
    worst = int(np.nanargmax(data.rank_imbalance))
    rank = data.ranks[int(data.rank_rows[worst].argmax())]
    version = f" · placement v{data.placement}"
    hottest = f"layer {data.layers[int(row)]} expert {int(expert)} {numbers.times(float(load[row, expert]))}"
    busiest = f"rank {rank} in layer {data.layers[worst]} {numbers.times(float(data.rank_imbalance[worst]))}"
    return Content.assemble(
        ("hottest expert ", "$muted"), (hottest, "bold"), (" · busiest rank ", "$muted"), (busiest, "bold"),
        (version, "$muted"),
    )  # fmt: skip
