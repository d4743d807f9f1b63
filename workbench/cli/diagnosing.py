"""Runs a playbook for the command line: finds the runs, shows the checks as they finish, keeps the answer in the run."""

from __future__ import annotations

from playbooks.document import Diagnosis
from playbooks.runner import Asked, CheckEvent, OnStep, diagnose
from traces.errors import NotWritable
from traces.run import Run, find_run
from traces.store import write_document
from workbench.cli.output import note
from workbench.cli.progress import Bar


def diagnose_run(symptom: str, run_name: str, baseline: str | None, last: float | None, carry_out: bool, watched: bool) -> Diagnosis:
    """The diagnosis, with what was applied. Raises UnknownRun, UnknownSymptom, Unreachable."""
    run = find_run(run_name)
    compared = find_run(baseline) if baseline else None
    with Bar("checking", 1, quiet=not watched) as bar:
        found = diagnose(run, symptom, baseline=compared, window=Asked(last=last), on_step=_on(bar))
    if carry_out and found.findings:
        from playbooks.remedy import apply

        found = apply(run, found, on_progress=note)
    keep(run, found)
    return found


def keep(run: Run, found: Diagnosis) -> None:
    """Stores the diagnosis in its run, where reports and screens find it. A run that cannot be written is said, not failed for."""
    try:
        write_document(run, found.schema, found.to_dict())
    except NotWritable as error:
        note(f"the diagnosis was not stored: {error.message}")


def _on(bar: Bar) -> OnStep:
    def show(event: CheckEvent) -> None:
        bar.total = event.total
        bar.update(event.index + (event.state == "finished"), event.title)

    return show
