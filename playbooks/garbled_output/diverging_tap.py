"""garbled.diverging-tap: a forward pass parts from the reference at a tap that fits no cause known here.

Mandatory: without a reference nobody knows whether the model computes what it should, and the answer is inconclusive, not healthy.
Nor is it healthy where only one side has a tap, or where the prompt reaches no token of an expert: values that were read one by one show
neither an exchange nor a factor (S2.2). The check is skipped then.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, skipped
from playbooks.garbled_output.facts import COMPARED, COVERAGE, LOAD, fact, facts
from playbooks.garbled_output.from_taps import DIVERGED, from_taps, one_sided

ID = "garbled.diverging-tap"
REMEDY = "Compare the named tap with its neighbours: `workbench validate MODEL --reference transformers`."
judge = from_taps(ID, "A forward pass parts from the reference", REMEDY)


def test(case: Case) -> Result:
    problem = (fact(case, LOAD) or {}).get("problem")
    if problem:
        return skipped(f"a model that can be loaded: {problem}")
    missed = (fact(case, COVERAGE) or {}).get("missed_count", 0)
    found = _unnamed(case)
    lacking = sorted({part for whole in facts(case, COMPARED) for part in whole["lacking"]})
    if found.outcome == "pass" and lacking:
        return one_sided(lacking)
    if found.outcome == "pass" and missed:
        return skipped(f"tokens for {missed} experts that the prompt reached none of; record the reference with a longer prompt")
    return found


def _unnamed(case: Case) -> Result:
    from playbooks.garbled_output.signature import signature
    from playbooks.garbled_output.verdict import verdict

    seen = signature(case)
    if seen is None or seen.cause:
        return judge(case)
    title = "A forward pass parts from the reference"
    return verdict(
        case,
        ID,
        title,
        seen.summary,
        REMEDY,
        (COMPARED, "first", DIVERGED),
        seen.observed,
        seen.threshold,
        seen.unit,
        0.6,
        basis="supported",
    )


CHECK = Check(ID, "Any other difference", True, 60, test, (), __doc__ or "")
