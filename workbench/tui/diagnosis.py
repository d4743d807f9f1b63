"""The state of a playbook on the screen: immutable, moved on by what the runner reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from playbooks.document import CheckRecord, Diagnosis, Finding
    from playbooks.runner import CheckEvent

Phase = Literal["idle", "running", "done", "stopped", "failed", "applying"]

# status -> (glyph, word, colour): never the colour alone
LOOKS = {
    "waiting": ("·", "waiting", "muted"),
    "running": ("◌", "running", "accent"),
    "pass": ("✔", "pass", "success"),
    "fail": ("✖", "fail", "error"),
    "warn": ("▲", "warn", "warning"),
    "skipped": ("○", "skipped", "muted"),
    "not_applicable": ("–", "n/a", "muted"),
    "error": ("!", "error", "error"),
    "stopped": ("□", "stopped", "muted"),
}
VERDICTS = {
    "problem": ("✖", "problem", "error"),
    "warning": ("▲", "warning", "warning"),
    "healthy": ("✔", "healthy", "success"),
    "inconclusive": ("○", "inconclusive", "muted"),
    "error": ("!", "error", "error"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One check. `status` is a key of LOOKS; the record is there once it has finished."""

    id: str
    title: str
    status: str = "waiting"
    record: CheckRecord | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Playbook:
    """Everything screen 3 shows. `words` is what the remedy is doing, or why something ended."""

    symptom: str = ""
    title: str = ""
    phase: Phase = "idle"
    steps: tuple[Step, ...] = ()
    found: Diagnosis | None = None
    words: str = ""

    @property
    def busy(self) -> bool:
        return self.phase in ("running", "applying")

    @property
    def current(self) -> int:
        """The step that runs, or the one to look at when nothing does: the first that found something."""
        for status in ("running", "fail", "warn", "error", "skipped"):
            for index, step in enumerate(self.steps):
                if step.status == status:
                    return index
        return 0

    def ready(self, symptom: str, title: str, checks: tuple[tuple[str, str], ...]) -> Playbook:
        """Another symptom is chosen: its checks as (id, title)."""
        return Playbook(symptom, title, "idle", tuple(Step(id, name) for id, name in checks))

    def titled(self, symptom: str, title: str, checks: tuple[tuple[str, str], ...]) -> Playbook:
        """The titles of a recorded diagnosis, once they are known."""
        names = dict(checks)
        steps = tuple(replace(step, title=names.get(step.id, step.title)) for step in self.steps)
        return replace(self, title=title, steps=steps) if symptom == self.symptom else self

    def begin(self) -> Playbook:
        """The playbook starts."""
        steps = tuple(Step(step.id, step.title) for step in self.steps)
        return replace(self, phase="running", steps=steps, found=None, words="")

    def seen(self, event: CheckEvent) -> Playbook:
        """A check started or finished."""
        status = "running" if event.state == "started" or event.record is None else event.record.outcome
        step = Step(event.check, event.title, status, event.record, event.findings)
        known = any(one.id == step.id for one in self.steps)
        steps = tuple(step if one.id == step.id else one for one in self.steps) if known else (*self.steps, step)
        return replace(self, steps=steps)

    def finished(self, found: Diagnosis) -> Playbook:
        """The document is there."""
        return replace(self, phase="done", found=found, words="")

    def stopped(self, words: str, failed: bool = False) -> Playbook:
        """Ended before its end, by a person or by an error."""
        steps = tuple(replace(step, status="stopped") if step.status in ("running", "waiting") else step for step in self.steps)
        return replace(self, phase="failed" if failed else "stopped", steps=steps, words=words)

    def applying(self, words: str = "") -> Playbook:
        """The remedy is being carried out; `words` is what it is doing."""
        return replace(self, phase="applying", words=words)

    def not_applied(self, words: str) -> Playbook:
        """Carrying out the remedy failed; the diagnosis stays."""
        return replace(self, phase="done", words=words)

    def loaded(self, found: Diagnosis) -> Playbook:
        """A diagnosis that was recorded with the run."""
        titles = {step.id: step.title for step in self.steps}
        by_cause: dict[str, tuple[Finding, ...]] = {}
        for finding in found.findings:
            by_cause[finding.id] = (*by_cause.get(finding.id, ()), finding)
        steps = tuple(
            Step(record.id, titles.get(record.id, record.id), record.outcome, record, by_cause.get(record.id, ()))
            for record in found.checks
        )
        return replace(self, symptom=found.symptom, phase="done", steps=steps, found=found)
