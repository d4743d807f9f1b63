"""The record as Markdown: the skeleton of the manual for bringing this model up somewhere else."""

from __future__ import annotations

from workbench.bringup.document import BringupDocument, Step

MARKS = {"pass": "passed", "fail": "**failed**", "skipped": "skipped", "not reached": "not reached"}


def manual(document: BringupDocument) -> str:
    """A table of all steps, then one section for each that was reached."""
    where = f", engine at `{document.endpoint}`" if document.endpoint else ""
    lines = [f"# Bringing up `{_plain(document.model)}`{where}", ""]
    if document.status == "unfinished":
        lines += ["Not finished: the call was interrupted.", ""]
    elif document.stopped_at is None:
        lines += ["All steps that could be taken passed.", ""]
    else:
        lines += [f"Stopped at **{document.stopped_at}**. The variable just added: {document.variable}.", ""]
    lines += ["| step | adds | result | seconds |", "|---|---|---|---|"]
    for step in document.steps:
        seconds = "" if step.seconds is None else f"{step.seconds:.1f}"
        lines.append(f"| {step.name} | {step.adds} | {MARKS[step.status]} | {seconds} |")
    for number, step in enumerate(document.steps, 1):
        if step.status != "not reached":
            lines += ["", *_section(number, step)]
    return "\n".join(lines) + "\n"


def _section(number: int, step: Step) -> list[str]:
    lines = [f"## {number}. {step.name}", "", f"Adds {step.adds}. {MARKS[step.status].capitalize()}: {_plain(step.summary)}", ""]
    if step.evidence:
        lines += ["| observed | value | expected |", "|---|---|---|"]
        lines += [f"| {_plain(one.name)} | {_plain(one.observed)} | {_plain(one.expected)} |" for one in step.evidence]
    lines += [f"- next: `{_plain(command)}`" for command in step.next]
    return [*lines, "", "What had to be changed here, and why: "]


def _plain(text: str) -> str:
    """One line that cannot break out of a table cell or become markup."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
