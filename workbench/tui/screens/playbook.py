"""Screen 3: a symptom's playbook, run here: steps on the left, live evidence on the right, the verdict below."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, Any, ClassVar, cast

from loguru import logger
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker, WorkerState

from traces.errors import WorkbenchError
from workbench.tui import finding_text
from workbench.tui.data import diagnoses
from workbench.tui.diagnosis import Playbook
from workbench.tui.feed import LIVE, Reads
from workbench.tui.screens.base import DataScreen
from workbench.tui.screens.confirm import Confirm

if TYPE_CHECKING:
    from playbooks.document import Diagnosis
    from playbooks.runner import CheckEvent


class Stopped(Exception):
    """A person stopped the playbook between two checks."""


class PlaybookScreen(DataScreen["Diagnosis | None"]):
    """Chooses a symptom, runs its checks, shows what they measure, and carries out the remedy."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "symptom", "Symptom"),
        Binding("a", "apply", "Apply"),
        Binding("x", "stop", "Stop"),
    ]

    class Seen(Message):
        """The runner reports a check, from its thread."""

        def __init__(self, event: CheckEvent) -> None:
            super().__init__()
            self.event = event

    class Told(Message):
        """The remedy says what it is doing, from its thread."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    def __init__(self) -> None:
        super().__init__()
        self.playbook = Playbook()
        self._chosen = 0
        self._asked_here, self._want_start = False, False
        self._stop = Event()

    def body(self) -> ComposeResult:
        with Horizontal(id="playbook"):
            with Vertical(id="steps-panel", classes="panel"):
                yield OptionList(id="steps")
            with VerticalScroll(id="evidence-panel", classes="panel", can_focus=True):
                yield Static(id="evidence", markup=False)
        with VerticalScroll(id="finding-panel", classes="panel", can_focus=True):
            yield Static(id="verdict", markup=False)
            yield Static(id="findings", markup=False)

    def on_mount(self) -> None:
        self.query_one("#evidence-panel").border_title = "evidence"
        self.query_one("#finding-panel").border_title = "verdict"
        self.query_one(OptionList).focus()
        self._choose()

    # -- what was recorded ----------------------------------------------------------------------------------------

    def ask(self, store: Reads) -> Diagnosis | None:
        return diagnoses.latest(store)

    def show(self, value: Diagnosis | None) -> None:
        """A diagnosis recorded with the run, by anybody; what was asked for here stays."""
        if value is not None and not self._asked_here and not self.playbook.busy and value != self.playbook.found:
            self._move(self.playbook.loaded(value))

    # -- choosing and running ---------------------------------------------------------------------------------------

    def _choose(self) -> None:
        self._work("symptom", lambda: diagnoses.symptom(self._chosen))

    def _work(self, group: str, job: Callable[[], object]) -> None:
        """In a thread; how it ended comes back as a change of the worker's state."""
        self.run_worker(job, thread=True, exclusive=True, group=group, exit_on_error=False)

    def action_symptom(self) -> None:
        """The next symptom."""
        if not self.playbook.busy:
            self._chosen, self._asked_here = self._chosen + 1, True
            self._choose()

    def start(self) -> None:
        """Runs the playbook of the chosen symptom; at once, or when its checks are known."""
        if self.playbook.busy:
            return
        self._stop.clear()
        if not self.playbook.symptom:
            self._want_start = self._asked_here = True
            return
        run = self.workbench.run_folder
        if run is None:
            self.notify("this screen was opened without a run folder", severity="warning")
            return
        self._asked_here, self._want_start = True, False
        self._move(self.playbook.begin())
        symptom = self.playbook.symptom
        self._work("playbook", lambda: diagnoses.run(run, symptom, self._on_step))

    def _on_step(self, event: CheckEvent) -> None:
        """In the runner's thread."""
        if self._stop.is_set():
            raise Stopped
        self.post_message(self.Seen(event))

    def on_playbook_screen_seen(self, message: Seen) -> None:
        if self.playbook.phase == "running":
            self._move(self.playbook.seen(message.event))

    def on_playbook_screen_told(self, message: Told) -> None:
        logger.info("remedy: {}", message.words)
        if self.playbook.phase == "applying":
            self._move(self.playbook.applying(message.words))

    def action_stop(self) -> None:
        """Stops after the check in progress, or before the first one."""
        if self.playbook.phase == "running" or self._want_start:
            self._stop.set()

    def action_apply(self) -> None:
        """Asks, then carries out the first remedy that may be carried out by itself."""
        found, facts = self.playbook.found, self.workbench.status.facts
        remedy = None if found is None else diagnoses.appliable(found)
        if found is None or remedy is None or self.playbook.busy:
            self.notify("there is no remedy to apply", severity="warning")
        elif facts is None or facts.state != LIVE:
            self.notify("a remedy needs a live run", severity="warning")
        else:
            details = [("risk", remedy.risk), ("verified by", remedy.verify)]
            self.app.push_screen(Confirm("Apply the remedy to the live run?", remedy.text, details), self._apply_if)

    def _apply_if(self, agreed: bool | None) -> None:
        run, found = self.workbench.run_folder, self.playbook.found
        if agreed and run is not None and found is not None:
            self._move(self.playbook.applying())
            self._work("apply", lambda: diagnoses.apply(run, found, self._tell))

    def _tell(self, words: str) -> None:
        """In the remedy's thread."""
        self.post_message(self.Told(words))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        group, state = event.worker.group, event.state
        if group == "data":
            super().on_worker_state_changed(event)
        elif state is WorkerState.SUCCESS and group == "symptom":
            self._offer(cast(diagnoses.Choice, event.worker.result))
        elif state is WorkerState.SUCCESS and group in ("playbook", "apply"):
            self._move(self.playbook.finished(cast(Any, event.worker.result)))
        elif state is WorkerState.ERROR and group in ("symptom", "playbook", "apply"):
            self._ended(event.worker.error, group)

    def _offer(self, choice: diagnoses.Choice) -> None:
        self._chosen = choice.index
        if not self._asked_here and self.playbook.found is not None:
            self._move(self.playbook.titled(choice.name, choice.title, choice.checks))
            return
        self._move(self.playbook.ready(choice.name, choice.title, choice.checks))
        if self._want_start and self._stop.is_set():
            self._want_start = False
            self._move(self.playbook.stopped("by you"))
        elif self._want_start:
            self.start()

    def _ended(self, error: BaseException | None, group: str) -> None:
        if isinstance(error, Stopped):
            self._move(self.playbook.stopped("by you"))
            return
        words = error.message if isinstance(error, WorkbenchError) else f"{type(error).__name__}: {error}"
        logger.opt(exception=None if isinstance(error, WorkbenchError) else error).error("{} failed: {}", group, words)
        if group == "apply" and self.playbook.found is not None:
            self._move(self.playbook.not_applied(f"the remedy was not applied: {words}"))
        else:
            self._move(self.playbook.stopped(words, failed=True))

    # -- drawing ------------------------------------------------------------------------------------------------------

    def _move(self, playbook: Playbook) -> None:
        """The next state, drawn."""
        self.playbook = playbook
        steps = self.query_one(OptionList)
        panel = self.query_one("#steps-panel")
        panel.border_title, panel.border_subtitle = playbook.symptom or "playbook", playbook.title
        width = max(steps.size.width, 30)
        here = playbook.current if playbook.phase in ("running", "done") else steps.highlighted
        lines = [finding_text.step_line(step, width) for step in playbook.steps]
        if len(lines) != steps.option_count:
            steps.set_options([Option(line) for line in lines])
        else:
            for index, line in enumerate(lines):
                if steps.get_option_at_index(index).prompt != line:
                    steps.replace_option_prompt_at_index(index, line)
        if lines:
            steps.highlighted = min(here or 0, len(lines) - 1)
        self.query_one("#verdict", Static).update(finding_text.verdict(playbook))
        facts = self.workbench.status.facts
        findings = self.query_one("#findings", Static)
        findings.update(finding_text.findings(playbook, findings.size.width or 90, facts is not None and facts.state == LIVE))
        self._evidence()

    def on_option_list_option_highlighted(self) -> None:
        self._evidence()

    def on_resize(self) -> None:
        self.call_after_refresh(lambda: self._move(self.playbook))

    def _evidence(self) -> None:
        index = self.query_one(OptionList).highlighted
        steps = self.playbook.steps
        text = finding_text.evidence(steps[index]) if index is not None and index < len(steps) else ""
        self.query_one("#evidence", Static).update(text)
