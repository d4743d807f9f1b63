"""The playbooks as the screens use them: choosing a symptom, running it, the last recorded answer. Everything here runs in a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from loguru import logger

from traces.errors import NotWritable
from workbench.tui.data.ask import ask
from workbench.tui.feed import Reads, file_turn

if TYPE_CHECKING:
    from playbooks.document import Diagnosis, Remedy
    from playbooks.runner import CheckEvent
    from traces.run import Run

SCHEMA = "workbench.diagnosis.v1"
FIRST = "tail-latency"  # what a person who watches a serving run asks first


@dataclass(frozen=True, slots=True)
class Choice:
    """A symptom with its checks as (id, title); `index` counts the symptoms there are."""

    index: int
    name: str
    title: str
    checks: tuple[tuple[str, str], ...]


def symptom(index: int) -> Choice:
    """The symptom of a number: tail latency, then the others by name; numbers go round."""
    from playbooks.symptoms import names, symptom

    known = sorted(names(), key=lambda name: (name != FIRST, name))
    chosen, _ = symptom(known[index % len(known)])
    return Choice(index % len(known), chosen.name, chosen.title, tuple((check.id, check.title) for check in chosen.checks))


def run(folder: Run, name: str, on_step: Callable[[CheckEvent], None]) -> Diagnosis:
    """Runs a playbook and keeps its answer in the run."""
    from playbooks.runner import diagnose

    with file_turn(live=folder.collector() is not None):
        found = diagnose(folder, name, on_step=on_step)
        _keep(folder, found)
    return found


def appliable(found: Diagnosis) -> Remedy | None:
    """The remedy that may be carried out without a person's hands."""
    from playbooks.remedy import automatic

    chosen = automatic(found)
    return None if chosen is None else chosen[1]


def apply(folder: Run, found: Diagnosis, say: Callable[[str], None]) -> Diagnosis:
    """Carries out the remedy of a diagnosis, and keeps the answer with what it changed. `say` is told each stage."""
    from playbooks.remedy import apply

    applied = apply(folder, found, on_progress=say)
    _keep(folder, applied)
    return applied


def _keep(folder: Run, found: Diagnosis) -> None:
    from traces.store import write_document

    try:
        write_document(folder, SCHEMA, found.to_dict())
    except NotWritable as error:
        logger.warning("the diagnosis was not stored: {}", error.message)


def latest(store: Reads) -> Diagnosis | None:
    """The newest diagnosis recorded with the run; None where there is none, or none that this version reads."""
    from playbooks.document import from_json

    rows = ask(store, "SELECT body FROM document WHERE kind = ? ORDER BY ts DESC LIMIT 1", [SCHEMA])
    if not rows:
        return None
    try:
        return from_json(rows[0]["body"])
    except msgspec.ValidationError as error:
        logger.warning("a recorded diagnosis cannot be read: {}", error)
        return None
