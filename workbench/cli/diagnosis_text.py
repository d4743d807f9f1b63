"""A diagnosis as text for a terminal, in the document's order."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator

from playbooks.document import Applied, CheckRecord, Diagnosis, Evidence, Finding
from workbench.cli.output import cell
from workbench.cli.style import Role, paint

VERDICTS: dict[str, tuple[str, Role]] = {
    "healthy": ("✓", "good"),
    "problem": ("✗", "bad"),
    "warning": ("!", "warn"),
    "inconclusive": ("?", "warn"),
    "error": ("✗", "bad"),
}
OUTCOMES: dict[str, tuple[str, Role]] = {
    "pass": ("✓", "good"),
    "fail": ("✗", "bad"),
    "warn": ("!", "warn"),
    "skipped": ("–", "dim"),
    "not_applicable": ("–", "dim"),
    "error": ("✗", "bad"),
}
WIDEST = 110
INDENT = 20


def as_text(diagnosis: Diagnosis) -> str:
    run = diagnosis.run
    mark, role = VERDICTS[diagnosis.verdict]
    lines = [f"{paint(f'{mark} {diagnosis.verdict}', role)}  {diagnosis.symptom} of {run.id} ({run.model}, {run.world_size} ranks)"]
    lines += [_labelled("read", source.note) for source in diagnosis.sources if source.note]
    lines.append("")
    lines += [check_line(check) for check in diagnosis.checks]
    for finding in diagnosis.findings:
        lines += ["", *_finding(finding)]
    for one in diagnosis.applied:
        lines += ["", *_applied(one)]
    return "\n".join(lines)


def check_line(check: CheckRecord) -> str:
    """`✓ tail.queueing    queueing is 3 % of the time to the first token`"""
    mark, role = OUTCOMES[check.outcome]
    said = f"not measured: {'; '.join(check.missing)}" if check.missing else check.summary
    head = f"{paint(mark, role)} {check.id:<24} "
    return head + textwrap.fill(said, _width() - 27, subsequent_indent=" " * 27)


def _finding(finding: Finding) -> Iterator[str]:
    tone: Role = "bad" if finding.severity in ("critical", "error") else "warn" if finding.severity == "warning" else "dim"
    yield f"{paint(finding.severity, tone)} {paint(finding.id, 'bold')}"
    yield textwrap.fill(paint(finding.title, "bold"), _width(), initial_indent="  ", subsequent_indent="  ")
    yield textwrap.fill(finding.summary, _width(), initial_indent="  ", subsequent_indent="  ")
    for name, value in finding.subject.labels.items():
        yield _labelled(name.replace("_", " "), listed(value))
    yield _labelled("confidence", f"{finding.confidence.score:.2f}, {finding.confidence.basis}")
    if impact := finding.impact:
        yield _labelled("costs", f"{impact.value:.4g} {impact.unit} of {impact.metric} ({impact.share:.1%})")
    if finding.evidence:
        yield f"  {'evidence':<{INDENT - 2}}{'observed':>10} {'expected':>10}"
    for one in finding.evidence:
        yield _evidence(one)
    if ruled_out := [other.id for other in finding.alternatives if other.ruled_out_by]:
        yield _labelled("ruled out", ", ".join(ruled_out))
    if untested := [other.id for other in finding.alternatives if not other.ruled_out_by]:
        yield _labelled("not tested", ", ".join(untested))
    for remedy in finding.remedy:
        yield _labelled("remedy", remedy.text + (f" Risk: {remedy.risk}." if remedy.risk else ""))
        if remedy.command:
            yield _labelled("", f"$ {remedy.command}")


def _evidence(one: Evidence) -> str:
    """`      2.482      1.073  max/mean: rows per rank in layer 0`"""
    head = f"{' ' * INDENT}{cell(one.observed):>10} {cell(one.expected):>10}  "
    return textwrap.fill(f"{one.unit}: {one.note or one.source}", _width(), initial_indent=head, subsequent_indent=" " * len(head))


def _applied(one: Applied) -> Iterator[str]:
    tone: Role = "good" if one.verdict == "improved" else "warn"
    yield f"{paint('applied', 'bold')} {one.remedy}: {paint(one.verdict, tone)}" + (" and taken back" if one.rolled_back else "")
    if one.answers_equal is not None:
        yield f"  greedy answers {'did not change' if one.answers_equal else 'CHANGED'}"
    for key in one.before:
        if not isinstance(one.before[key], dict | list):
            yield f"  {key.replace('_', ' ') + ':':<24} {cell(one.before[key])} → {cell(one.after.get(key))}"
    if one.note:
        yield textwrap.fill(one.note, _width(), initial_indent="  ", subsequent_indent="  ")


def listed(value: object) -> str:
    """3, 7, 9 of a list; 0: 3, 7; 1: 2 of a mapping."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {listed(value[key])}" for key in sorted(value))
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else cell(value)


def _width() -> int:
    return max(60, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))


def _labelled(name: str, text: str) -> str:
    return textwrap.fill(text, _width(), initial_indent=f"  {name:<{INDENT - 2}}", subsequent_indent=" " * INDENT, drop_whitespace=True)
