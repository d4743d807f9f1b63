"""A diagnosis as Markdown: for an issue, a chat or a file beside the report."""

from __future__ import annotations

from playbooks.document import Applied, CheckRecord, Diagnosis, Evidence, Finding, Observed, Source, Window


def markdown(diagnosis: Diagnosis) -> str:
    """Verdict first, then findings with their evidence and remedy, then every check with why it decided as it did."""
    run = diagnosis.run
    lines = [
        f"# {diagnosis.symptom}: {diagnosis.verdict}",
        "",
        f"Run `{run.id}`, {run.engine} serving {run.model} on {run.world_size} ranks.",
    ]
    lines += [_source(source, source.window) for source in diagnosis.sources if source.window is not None]
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += ["", *_finding(number, finding)]
    for applied in diagnosis.applied:
        lines += ["", *_applied(applied)]
    lines += ["", "## Checks", "", "| check | outcome | why |", "|---|---|---|", *(_check(check) for check in diagnosis.checks)]
    return "\n".join(lines) + "\n"


def _source(source: Source, window: Window) -> str:
    read = f"{source.steps} steps ({source.detailed} in detail) and {source.requests} requests in {(window.t1 - window.t0) / 1e9:.1f} s"
    return f"Read: {read}; {source.note}."


def _finding(number: int, finding: Finding) -> list[str]:
    role = finding.role if not finding.caused_by else f"{finding.role} of {', '.join(finding.caused_by)}"
    sure = f"confidence {finding.confidence.score:.0%}, {finding.confidence.basis}"
    lines = [f"## {number}. {finding.title}", "", f"`{finding.id}` · {finding.severity} · {role} · {sure}", "", finding.summary]
    if finding.impact is not None:
        impact = finding.impact
        gains = [
            f"{value:.3g} {impact.unit} if {when}"
            for value, when in ((impact.alone, "fixed alone"), (impact.last, "fixed last"))
            if value is not None
        ]
        lines += [
            "",
            f"Impact on {impact.metric}: {impact.value:.3g} {impact.unit}, {impact.share:.0%}"
            + (f"; gain {', '.join(gains)}" if gains else "")
            + ".",
        ]
    if finding.evidence:
        lines += ["", "| observed | expected | unit | how |", "|---|---|---|---|", *(_evidence(item) for item in finding.evidence)]
    for remedy in finding.remedy:
        lines += ["", f"- **Remedy:** {_cell(remedy.text)}" + (f" Risk: {_cell(remedy.risk)}." if remedy.risk else "")]
        lines += [f"  `{remedy.command}`"] if remedy.command else []
    if ruled_out := [other for other in finding.alternatives if other.ruled_out_by]:
        lines += ["", "Ruled out:", *(f"- `{other.id}`: {'; '.join(other.ruled_out_by)}" for other in ruled_out)]
    return lines


def _evidence(item: Evidence) -> str:
    how = f"{item.note}: `{item.query}`" if item.note else f"`{item.query}`"
    return f"| {_number(item.observed)} | {_number(item.expected)} | {item.unit} | {_cell(how)} |"


def _applied(applied: Applied) -> list[str]:
    taken = "; taken back" if applied.rolled_back else ""
    return [
        f"## Remedy: {applied.verdict}{taken}",
        "",
        applied.remedy,
        "",
        f"Before: {applied.before}",
        "",
        f"After: {applied.after}",
        "",
        applied.note,
    ]


def _check(check: CheckRecord) -> str:
    return f"| `{check.id}`{'' if check.mandatory else ' (optional)'} | {check.outcome} | {_cell(check.summary)} |"


def _number(value: Observed) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else _cell(str(value))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
