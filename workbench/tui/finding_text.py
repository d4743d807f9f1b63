"""A check's evidence, a finding, and what a remedy changed, as text for the panels of screen 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.content import Content

from workbench.tui import numbers
from workbench.tui.diagnosis import LOOKS, VERDICTS, Playbook, Step
from workbench.tui.paragraph import paragraph

if TYPE_CHECKING:
    from playbooks.document import Applied, Evidence, Finding

_MUTED = "$muted"
_NOT_MEASURED = ("placement", "steps")  # of what was applied: no gain or loss
IMPROVEMENTS = {
    "improved": ("✔", "success"),
    "unchanged": ("=", "warning"),
    "worse": ("✖", "error"),
    "undetermined": ("○", "muted"),
}


def value(number: Any, unit: str = "") -> str:
    """An observed value with its unit: 0.312 share of step time, 31.4 ms."""
    if number is None:
        return numbers.NOTHING
    if isinstance(number, float):
        words = f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
    else:
        words = str(number)
    return f"{words} {unit}".strip()


def step_line(step: Step, width: int) -> Content:
    """Glyph, word, title, and the time at the right edge; never wraps."""
    glyph, word, color = LOOKS[step.status]
    took = numbers.duration(step.record.seconds * 1e9) if step.record is not None else ""
    room = max(width - 10 - 8, 8)
    title = step.title if len(step.title) <= room else step.title[: room - 1] + "…"
    return Content.assemble((f"{glyph} {word:<8}", f"${color}"), f"{title:<{room}}", (f"{took:>8}", _MUTED))


def evidence(step: Step) -> Content:
    """What a check measured, against what, and the query that gives the number again."""
    glyph, word, color = LOOKS[step.status]
    lines = [Content.assemble((f"{glyph} {word}  ", f"bold ${color}"), (step.title, "bold")), Content.styled(step.id, _MUTED)]
    record = step.record
    if record is None:
        return Content("\n").join(lines)
    if record.observed is not None:
        lines.append(Content.assemble(("observed  ", _MUTED), (value(record.observed, record.unit), "bold")))
        lines.append(Content.assemble(("threshold ", _MUTED), value(record.threshold, record.unit)))
    if record.summary:
        lines += [Content(""), Content(record.summary)]
    for missing in record.missing:
        if missing != record.summary:
            lines.append(Content.assemble(("missing: ", "$warning"), missing))
    for finding in step.findings:
        for item in finding.evidence:
            lines += [Content(""), *_evidence(item)]
    return Content("\n").join(lines)


def _evidence(item: Evidence) -> list[Content]:
    expected = "" if item.expected is None else f"   expected {value(item.expected)}"
    lines = [Content.assemble((f"{value(item.observed, item.unit)}", "bold $primary"), (expected, _MUTED))]
    if item.note:
        lines.append(Content(item.note))
    lines.append(Content.assemble((f"{item.kind} ", "$secondary"), (item.query, _MUTED)))
    return lines


def verdict(playbook: Playbook) -> Content:
    """The verdict's line, or what the playbook is doing."""
    took = numbers.duration(sum(step.record.seconds for step in playbook.steps if step.record is not None) * 1e9)
    if playbook.phase == "applying":
        return Content.styled(f"◌ carrying out the remedy: {playbook.words or 'asking the server'}", "bold $accent")
    if playbook.found is None:
        total = len(playbook.steps)
        now = min(sum(step.record is not None for step in playbook.steps) + 1, total)
        words = {
            "idle": "press d to diagnose this run", "running": f"◌ check {now} of {total}   x stops",
            "stopped": f"□ stopped {playbook.words}", "failed": f"! {playbook.words}",
        }.get(playbook.phase, "")  # fmt: skip
        return Content.styled(words, "bold $error" if playbook.phase == "failed" else "bold $accent")
    glyph, word, color = VERDICTS[playbook.found.verdict]
    parts: list[Any] = [(f"{glyph} {word}", f"bold ${color}")]
    for applied in playbook.found.applied:
        mark, tint = IMPROVEMENTS[applied.verdict]
        parts.append((f"  →  {mark} {applied.verdict} by the remedy", f"bold ${tint}"))
    parts.append((f"   {len(playbook.steps)} checks in {took}", _MUTED))
    if playbook.words:
        parts.append((f"   {playbook.words}", "bold $warning"))
    return Content.assemble(*parts)


def findings(playbook: Playbook, width: int, live: bool) -> Content:
    """What was applied, then all findings, the best explanation first. Only on a live run can a remedy be applied."""
    found = playbook.found
    if found is None:
        return Content(playbook.title)
    parts: list[Content] = []
    for applied in found.applied:
        parts += [_applied(applied), Content("")]
    for finding in found.findings:
        parts += [_finding(finding, width, live and not playbook.busy and not found.applied), Content("")]
    if not found.findings:
        parts.append(Content.styled(_nothing(found.verdict), _MUTED))
    return Content("\n").join(parts)


def _nothing(word: str) -> str:
    return "nothing found; not everything could be measured: see the skipped checks" if word == "inconclusive" else "nothing found"


def _finding(finding: Finding, width: int, appliable: bool) -> Content:
    color = {"critical": "error", "error": "error", "warning": "warning"}.get(finding.severity, "muted")
    sure = f"{finding.severity}, {finding.confidence.basis} {finding.confidence.score:.2f}"
    caused = f", a consequence of {', '.join(finding.caused_by)}" if finding.caused_by else ""
    lines = [
        Content.styled(finding.title, f"bold ${color}"),
        Content.styled(sure + caused, _MUTED),
        Content(finding.summary),
        paragraph("subject", _subject(finding), width),
    ]
    if finding.impact is not None:
        impact = finding.impact
        gain = "" if impact.alone is None else f"; fixed alone it gives back {value(impact.alone, impact.unit)}"
        words = f"{impact.metric} {value(impact.value, impact.unit)}, {numbers.percent(impact.share)} of it{gain}"
        lines.append(paragraph("impact", words, width))
    for remedy in finding.remedy:
        lines.append(paragraph("remedy", remedy.text, width, "$success"))
        if remedy.automatic and appliable:
            lines.append(paragraph("", "press a to apply it to this live run", width, "bold $accent"))
        elif remedy.command:
            lines.append(paragraph("", remedy.command, width, "$secondary"))
        if remedy.risk:
            lines.append(paragraph("risk", remedy.risk, width))
    return Content("\n").join(lines)


def _subject(finding: Finding) -> str:
    labels = {key: held for key, held in finding.subject.labels.items() if held not in (None, [], {}, "") and not isinstance(held, dict)}
    words = ", ".join(f"{key} {_listed(held)}" for key, held in labels.items())
    return f"{finding.subject.kind} {finding.subject.id}" + (f" ({words})" if words else "")


def _listed(held: Any) -> str:
    return " ".join(str(one) for one in held) if isinstance(held, list | tuple) else str(held)


def _applied(applied: Applied) -> Content:
    """Before and after, side by side, with the change."""
    glyph, color = IMPROVEMENTS[applied.verdict]
    lines = [Content.assemble((f"{glyph} {applied.verdict}  ", f"bold ${color}"), (applied.remedy, "bold"))]
    rows = [(key, applied.before.get(key), applied.after.get(key)) for key in dict.fromkeys([*applied.before, *applied.after])]
    plain = [row for row in rows if isinstance(row[1] if row[1] is not None else row[2], int | float)]
    if plain:
        lines.append(Content.styled(f"{'':<26}{'before':>12}{'after':>12}{'change':>10}", _MUTED))
    for key, before, after in plain:
        change = f"{(after - before) / before:+.0%}" if before and after is not None and key not in _NOT_MEASURED else ""
        words = f"{value(before):>12}{value(after):>12}"
        lines.append(Content.assemble((f"{key.replace('_', ' '):<26}", _MUTED), words, (f"{change:>10}", "bold")))
    notes = [applied.note] if applied.note else []
    if applied.answers_equal is not None:
        notes.append("greedy answers are equal before and after" if applied.answers_equal else "greedy answers DIFFER before and after")
    if applied.rolled_back:
        notes.append("the change was taken back")
    if applied.remaining:
        notes.append(f"still there: {', '.join(applied.remaining)}")
    return Content("\n").join([*lines, *(Content(note) for note in notes)])
