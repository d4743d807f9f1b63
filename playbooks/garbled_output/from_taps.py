"""Checks whose cause is read from the first diverging tap alone."""

from __future__ import annotations

from collections.abc import Callable

from playbooks.case import Case
from playbooks.check import Result, passed, skipped
from playbooks.finding import subject
from playbooks.garbled_output.facts import COMPARED, COVERAGE, fact, facts
from playbooks.garbled_output.signature import signature
from playbooks.garbled_output.verdict import verdict

DIVERGED = "attrs->>'$.first' IS NOT NULL"
REFERENCE = "taps of a reference: --reference FOLDER, FILE or transformers"


def from_taps(cause: str, title: str, remedy: str, parts: tuple[str, ...] = ()) -> Callable[[Case], Result]:
    """A test that reports the signature when it is this cause's. Without a reference, or where only one side has the `parts` that would
    show it, the test says that it could not look."""

    def test(case: Case) -> Result:
        if not facts(case, COMPARED):
            return skipped(REFERENCE)
        seen = signature(case)
        if seen is None or seen.cause != cause:
            unseen = sorted(set(parts).intersection(facts(case, COMPARED)[0]["lacks"]))
            return one_sided(unseen) if unseen else passed(agreement(case))
        about = subject("layer", seen.layer, layers=[seen.layer]) if seen.layer >= 0 else subject("setting", cause.partition(".")[2])
        evidence = (COMPARED, "first", DIVERGED)
        return verdict(
            case, cause, title, seen.summary, remedy, evidence, seen.observed, seen.threshold, seen.unit, seen.score, about=about
        )

    return test


def one_sided(parts: list[str]) -> Result:
    return skipped(f"taps that only one side has: {', '.join(parts)}; record the reference again")


def agreement(case: Case) -> str:
    whole = facts(case, COMPARED)[0]
    missed = (fact(case, COVERAGE) or {}).get("missed_count", 0)
    blind = f"; {missed} experts were reached by no token of the prompt" if missed else ""
    if whole["first"] is None:
        return f"no tap diverges from {whole['source']} above {whole['limit']:g}{blind}"
    if not whole["visible"]:
        return f"{whole['first']} diverges and the answers do not change: KL {whole['kl']:.2g}, top-1 agreement {whole['top1']:.3g}{blind}"
    return f"{whole['first']} diverges first, which has another cause{blind}"
