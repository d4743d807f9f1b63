"""The application: screens by digit, one status for all of them, and keys that mean the same everywhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from loguru import logger
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.reactive import reactive
from textual.screen import Screen
from textual.worker import Worker, WorkerState

from traces.errors import WorkbenchError
from workbench.tui import export, keys, palette, terminal
from workbench.tui.data.logs import Line, first_line
from workbench.tui.feed import Facts, Reads
from workbench.tui.opening import Opener
from workbench.tui.screens.base import DataScreen
from workbench.tui.screens.experts import ExpertsScreen
from workbench.tui.screens.help import Help
from workbench.tui.screens.log import LogScreen
from workbench.tui.screens.overview import OverviewScreen
from workbench.tui.screens.playbook import PlaybookScreen
from workbench.tui.screens.ranks import RanksScreen
from workbench.tui.screens.requests import RequestsScreen
from workbench.tui.status import Problem, Status

if TYPE_CHECKING:
    from traces.run import Run


class WorkbenchApp(App[None]):
    """Shows one run. Everything it needs from outside is injected: how to open the store, the run's folder, the clock."""

    CSS_PATH = "styles.tcss"
    TITLE = "workbench"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        "overview": OverviewScreen,
        "experts": ExpertsScreen,
        "playbook": PlaybookScreen,
        "ranks": RanksScreen,
        "requests": RequestsScreen,
        "log": LogScreen,
    }
    DEFAULT_MODE = "overview"
    BINDINGS: ClassVar[list[BindingType]] = keys.everywhere()

    status: reactive[Status] = reactive(Status())
    places: ClassVar[tuple[tuple[str, str, str], ...]] = keys.PLACES

    def __init__(
        self,
        open_store: Callable[[], Reads],
        run_folder: Run | None = None,
        *,
        interval: float = 1.0,
        clock: Callable[[], int] = time.time_ns,
        plain: bool | None = None,
    ) -> None:
        super().__init__()
        self.open_store, self.run_folder = open_store, run_folder
        self.interval, self.clock, self.plain = interval, clock, plain
        self.own_log: deque[Line] = deque(maxlen=500)
        for theme in palette.THEMES:
            self.register_theme(theme)
        self.theme = palette.THEMES[0].name

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our own colour names, for themes that do not know them."""
        return {"muted": "#8795a3", "faint": "#55626f"}

    def on_mount(self) -> None:
        self.set_interval(5.0, self._look_again)

    def _look_again(self) -> None:
        """A run that nobody collected for may be collected for again."""
        folder, screen = self.run_folder, self.screen
        idle = self.status.facts is not None and not self.status.changing and not self.status.paused
        if idle and folder is not None and folder.collector() is not None and isinstance(screen, DataScreen):
            screen.reload(queue=False)

    # -- what the screens report --------------------------------------------------------------------------------------

    def answered(self, facts: Facts) -> None:
        """A reading succeeded."""
        if self.status.problem is not None:
            logger.info("the run answers again")
        self.status = replace(self.status, facts=facts, updated=self.clock(), problem=None)

    def failed(self, error: BaseException) -> None:
        """A reading failed: the banner says so, and what was read stays on the screen."""
        old = self.status.problem
        known = isinstance(error, WorkbenchError)
        words, hint = (error.message, error.hint) if isinstance(error, WorkbenchError) else (f"{type(error).__name__}: {error}", "")
        words = words.splitlines()[0] if words else type(error).__name__
        if old is None or old.words != words:
            logger.opt(exception=None if known else error).warning("reading failed: {}", words)
        self.status = replace(self.status, problem=Problem(old.since if old else self.clock(), words, hint))

    def dropped(self, rows: int) -> None:
        """The number of rows known to be lost."""
        if rows != self.status.dropped:
            self.status = replace(self.status, dropped=rows)

    def log_line(self, message: Any) -> None:
        """A sink for loguru, from any thread."""
        record = message.record
        self.own_log.append(Line(int(record["time"].timestamp() * 1e9), record["level"].name, "tui", first_line(record["message"])))

    # -- keys ---------------------------------------------------------------------------------------------------------

    def action_go(self, mode: str) -> None:
        if mode in self.MODES and mode != self.current_mode:
            self.switch_mode(mode)

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_pause(self) -> None:
        """Stops reading, and starts again."""
        self.status = replace(self.status, paused=not self.status.paused)

    def action_theme(self) -> None:
        """The next of our themes."""
        names = [theme.name for theme in palette.THEMES]
        self.theme = names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]

    async def action_diagnose(self) -> None:
        """To the playbook, and runs it."""
        if self.current_mode != "playbook":
            await self.switch_mode("playbook")
        if isinstance(self.screen, PlaybookScreen):
            self.screen.start()

    def action_export(self) -> None:
        """Writes the report in a process of its own, which may import what it likes."""
        folder = self.run_folder
        if folder is None:
            self.notify("this screen was opened without a run folder", severity="warning")
            return
        self.notify("writing the report …")
        self.run_worker(lambda: export.report(folder), thread=True, exclusive=True, group="export", exit_on_error=False)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.worker.group != "export":
            return
        if event.state is WorkerState.SUCCESS:
            logger.info("report written to {}", event.worker.result)
            self.notify(str(event.worker.result), title="report written", timeout=15)
        elif event.state is WorkerState.ERROR:
            words = str(event.worker.error)
            logger.error("the report was not written: {}", words)
            self.notify(words, title="the report was not written", severity="error", timeout=15)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette: screens, and the keys that hold everywhere."""
        for digit, mode, name in keys.PLACES:
            yield SystemCommand(f"{digit} {name}", f"go to {name}", lambda mode=mode: self.action_go(mode))
        actions = {"diagnose": self.action_diagnose, "export": self.action_export, "pause": self.action_pause,
                   "theme": self.action_theme, "help": self.action_help, "quit": self.action_quit}  # fmt: skip
        for _, action, word, words in keys.EVERYWHERE:
            if action in actions:
                yield SystemCommand(word or action.capitalize(), words, actions[action])


def run(run: Run, *, interval: float = 1.0) -> int:
    """Shows a run until the person leaves. Returns the exit code."""
    from traces.errors import NotWritable

    try:
        log_file = run.folder("logs") / "tui.log"
    except NotWritable:
        log_file = None
    app = WorkbenchApp(Opener(run), run, interval=interval)
    with terminal.own_terminal(log_file, app.log_line):
        app.run()
    return app.return_code or 0
