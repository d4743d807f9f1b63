"""The one way in which causes of this symptom write a finding."""

from __future__ import annotations

from typing import Any

from playbooks.case import Case
from playbooks.check import Result
from playbooks.document import Basis, Observed, Remedy, Severity, Subject
from playbooks.finding import finding, subject
from playbooks.garbled_output.facts import query


def verdict(
    case: Case, cause: str, title: str, summary: str, remedy: str, evidence: tuple[str, str, str], observed: Observed = None,
    threshold: Observed = None, unit: str = "", score: float = 0.9, severity: Severity = "error", basis: Basis = "established",
    about: Subject | None = None,
) -> Result:  # fmt: skip
    """`evidence`: kind of the facts, the field that was judged, a further SQL condition or ""."""
    asked = case.sql(query(case, *evidence), expected=threshold, unit=unit, note=summary)
    found = finding(
        case, cause, severity, about or subject("setting", cause.partition(".")[2]), title, summary, score, basis,
        evidence=(asked,), remedy=(Remedy(text=remedy, risk="low: nothing is changed by looking again", verify=VERIFY),),
    )  # fmt: skip
    return Result("warn" if severity == "warning" else "fail", summary, observed, threshold, unit, (found,))


VERIFY = "workbench diagnose garbled-output --model FOLDER"


def where(name: str, value: Any) -> str:
    """An SQL condition on a text field of a fact."""
    return f"attrs->>{Case.literal('$.' + name)} = {Case.literal(str(value))}"
