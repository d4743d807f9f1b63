"""The frame of a screen that shows data: read in a thread, show on the screen's own thread, never crash on a failed query."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer
from textual.worker import Worker, WorkerState

from workbench.tui.feed import Feed, Reading, Reads
from workbench.tui.widgets.runbar import RunBar

if TYPE_CHECKING:
    from workbench.tui.app import WorkbenchApp

T = TypeVar("T")
_SHARE = 0.25  # of the time that the queries of one screen may take


class DataScreen(Screen[None], Generic[T]):
    """Reads every interval while it is in front. Subclasses say what to ask (in a thread) and how to show it."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (140, "-wide")]  # noqa: RUF012 - textual declares the type
    VERTICAL_BREAKPOINTS = [(0, "-short"), (29, "-tall")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._feed: Feed | None = None
        self._busy, self._again, self._shown = False, False, False
        self._started, self._rest_until = 0.0, 0.0

    @property
    def workbench(self) -> WorkbenchApp:
        return cast("WorkbenchApp", self.app)

    @property
    def idle(self) -> bool:
        """Something was shown (or could not be read), and no reading is in progress."""
        return not self._busy and (self._shown or self.workbench.status.problem is not None)

    def ask(self, store: Reads) -> T:
        """Reads one snapshot. Runs in a thread: touches no widget."""
        raise NotImplementedError

    def show(self, value: T) -> None:
        """Shows a snapshot."""
        raise NotImplementedError

    def body(self) -> ComposeResult:
        """The widgets between header and footer."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield RunBar()
        yield from self.body()
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self._feed = Feed(self.workbench.open_store)
        self.set_interval(self.workbench.interval, self._tick)
        self.reload()

    def on_unmount(self) -> None:
        if self._feed is not None:
            self.run_worker(self._feed.close, thread=True, group="close")

    def on_screen_resume(self) -> None:
        if self._shown and self.workbench.status.changing and not self.workbench.status.paused:
            self.reload()

    def _tick(self) -> None:
        status = self.workbench.status
        if self.is_current and not status.paused and (status.changing or not self._shown) and monotonic() >= self._rest_until:
            self.reload(queue=False)

    def reload(self, queue: bool = True) -> None:
        """Reads now, or once more after the reading in progress."""
        if self._busy:
            self._again = self._again or queue
            return
        self._busy, self._started = True, monotonic()
        self.run_worker(self._read, thread=True, exclusive=True, group="data", exit_on_error=False)

    def _read(self) -> Reading[T]:
        assert self._feed is not None
        return self._feed.read(self.ask)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.worker.group != "data" or event.state not in (WorkerState.SUCCESS, WorkerState.ERROR, WorkerState.CANCELLED):
            return
        self._busy = False
        took = monotonic() - self._started
        self._rest_until = monotonic() + took / _SHARE - took
        if event.state is WorkerState.SUCCESS:
            reading = cast(Reading[Any], event.worker.result)
            self._shown = True
            self.workbench.answered(reading.facts)
            self.show(reading.value)
        elif event.worker.error is not None:
            self.workbench.failed(event.worker.error)
        if self._again:
            self._again = False
            self.reload()
