"""The two lines on top of every screen: the run and its state, and the screens by digit."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from workbench.tui import numbers
from workbench.tui.status import STATES, Status

if TYPE_CHECKING:
    from workbench.tui.app import WorkbenchApp


class RunBar(Vertical):
    """Follows the application's status; the age moves with its clock."""

    DEFAULT_CSS = """
    RunBar { height: auto; dock: top; background: $panel; padding: 0 1; }
    RunBar #facts { height: 1; width: 1fr; }
    RunBar #tabs { height: 1; width: 1fr; link-color: $muted; link-style: none; link-style-hover: underline; }
    RunBar #problem { height: auto; display: none; background: $error 25%; color: $foreground; margin: 0 -1; padding: 0 1; }
    RunBar.-problem #problem { display: block; }
    """

    def compose(self) -> ComposeResult:
        yield Static(id="facts", markup=False)
        yield Static(id="tabs")
        yield Static(id="problem", markup=False)

    def on_mount(self) -> None:
        self.watch(self.app, "status", self._follow)
        self.set_interval(1.0, self._tick)

    def _tick(self) -> None:
        status = cast("WorkbenchApp", self.app).status
        if self.screen.is_current and status.changing:
            self._follow(status)

    def _follow(self, status: Status) -> None:
        app = cast("WorkbenchApp", self.app)
        now = app.clock()
        self.query_one("#facts", Static).update(_facts(status, now, self.size.width - 2))
        self.query_one("#tabs", Static).update(_tabs(app.places, app.current_mode))
        self.set_class(status.problem is not None, "-problem")
        if status.problem is not None:
            age = numbers.span(now - status.problem.since)
            kept = f"showing what was read at {_clock(status.updated)}" if status.updated else "nothing read yet"
            hint = f" ({status.problem.hint})" if status.problem.hint else ""
            self.query_one("#problem", Static).update(f"▲ {status.problem.words}{hint} · for {age} · {kept} · trying again")


def _facts(status: Status, now: int, width: int) -> Content:
    glyph, color = STATES[status.state]
    facts = status.facts
    if facts is None:
        return Content.assemble(("workbench ", "bold"), (f"{glyph} opening the run", f"${color}"))
    age = numbers.span(now - facts.created) if status.state != "recorded" else _day(facts.created)
    left = Content.assemble(
        ("workbench  ", "bold"), (f"{glyph} {status.state}", f"bold ${color}"), f" {age}  ",
        (f"{facts.model} ", "$foreground"), (facts.layout or f"{facts.world_size} rank", "$secondary"),
    )  # fmt: skip
    if status.dropped:
        left = Content.assemble(left, (f"  ▲ {numbers.count(status.dropped)} rows dropped", "bold $warning"))
    if status.paused:
        left = Content.assemble(left, ("  ‖ paused", "bold $accent"))
    right = f"{facts.id}  {_clock(status.updated)}"
    if left.cell_length + len(right) + 2 > width:
        room = width - left.cell_length - 3
        right = facts.id if len(facts.id) <= room else f"…{facts.id[-room:]}" if room > 8 else ""
    gap = " " * max(width - left.cell_length - len(right), 1)
    return Content.assemble(left, gap, (right, "$muted"))


def _tabs(places: tuple[tuple[str, str, str], ...], current: str) -> Content:
    parts: list[Content | tuple[str, str]] = []
    for digit, mode, name in places:
        here = mode == current
        style = "bold $background on $primary" if here else f"$muted @click=app.go('{mode}')"
        parts.append((f" {digit} {name} ", style))
        parts.append((" ", ""))
    return Content.assemble(*parts)


def _clock(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9).strftime("%H:%M:%S") if ns else ""


def _day(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9).strftime("%Y-%m-%d %H:%M")
