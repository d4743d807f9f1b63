"""Exit codes of `workbench diagnose`, and how a verdict becomes one."""

from __future__ import annotations

from enum import IntEnum

from playbooks.document import Applied, Finding, Verdict


class Exit(IntEnum):
    """0 healthy, or a remedy was applied and verified. 1 and 2 are shared by every command."""

    HEALTHY = 0
    INTERNAL = 1
    USAGE = 2
    PROBLEM = 3
    WARNINGS = 4
    INCONCLUSIVE = 5
    INTERRUPTED = 130


_OF_VERDICT: dict[Verdict, Exit] = {
    "problem": Exit.PROBLEM,
    "warning": Exit.WARNINGS,
    "healthy": Exit.HEALTHY,
    "inconclusive": Exit.INCONCLUSIVE,
    "error": Exit.INTERNAL,
}


def exit_code(verdict: Verdict, findings: tuple[Finding, ...] = (), applied: tuple[Applied, ...] = ()) -> Exit:
    """0 after a remedy only if every root of the verdict was cured, measured as improved, and the second diagnosis leaves no problem."""
    code = _OF_VERDICT[verdict]
    if code not in (Exit.PROBLEM, Exit.WARNINGS) or not applied:
        return code
    cured = {one.finding for one in applied if one.verdict == "improved"}
    left = {name for one in applied for name in one.remaining}
    decisive = ("critical", "error") if code is Exit.PROBLEM else ("warning",)
    roots = {finding.id for finding in findings if finding.role == "root" and finding.severity in decisive}
    return Exit.HEALTHY if roots and roots <= cured and not left else code
