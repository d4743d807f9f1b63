"""Builds a finding: the fingerprint and the window are filled in, so that a cause states only what it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from playbooks.document import Basis, Confidence, Finding, Severity, Subject, SubjectKind, fingerprint

if TYPE_CHECKING:
    from playbooks.case import Case


def subject(kind: SubjectKind, name: object, **labels: Any) -> Subject:
    """Labels are plain JSON values: lists of ranks, layers, experts, hosts."""
    return Subject(kind=kind, id=str(name), labels=labels)


def finding(
    case: Case, cause: str, severity: Severity, about: Subject, title: str, summary: str, score: float, basis: Basis, **rest: Any
) -> Finding:
    """`rest`: role, impact, evidence, remedy as in the document."""
    return Finding(
        id=cause,
        fingerprint=fingerprint(cause, about),
        severity=severity,
        confidence=Confidence(score=round(score, 3), basis=basis),
        title=title,
        summary=summary,
        subject=about,
        window=case.period.window,
        **rest,
    )


def listed(values: list[int] | tuple[int, ...], noun: str, most: int = 6) -> str:
    """ "rank 2", "ranks 1 and 2", "layers 0, 3, 5, 6, 7, 9 and 4 more"."""
    words = [str(value) for value in values]
    if len(words) == 1:
        return f"{noun} {words[0]}"
    if len(words) > most:
        words = [*words[:most], f"{len(words) - most} more"]
    return f"{noun}s {', '.join(words[:-1])} and {words[-1]}"
