"""garbled.stop-set: the token by which the model ends its turn does not end the answer.

What is seen: endless answers, or a conversation with itself.

How it is told apart: the first special token that the template writes behind an assistant's message is what the model was taught to end
with. It must be among the ids in force.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.garbled_output.facts import STOPS, fact, need
from playbooks.garbled_output.verdict import verdict

ID = "garbled.stop-set"


def test(case: Case) -> Result:
    own, good = fact(case, STOPS) or {}, fact(case, STOPS + "_reference") or {}
    end = own.get("turn_end") if own.get("turn_end") is not None else good.get("turn_end")
    if end is None:
        return skipped("the token that ends a turn: the template writes none; give --reference FOLDER")
    lacking = sorted({end, *good.get("in_force", [])} - set(own["in_force"]))
    if not lacking:
        return passed(f"token {end} ends a turn and is in force")
    origins = ", ".join(f"{name} {own[name]}" for name in ("generation_config", "config", "tokenizer"))
    summary = f"token {lacking[0]} ends a turn and does not stop the answer; in force: {own['in_force']} ({origins})"
    remedy = "Name every end-of-answer token in generation_config.json: the union of all that are declared."
    return verdict(
        case, ID, "Answers do not stop at the end of a turn", summary, remedy, (STOPS, "in_force", ""), str(own["in_force"]), end
    )


CHECK = Check(ID, "Stop set", True, 13, test, (need(STOPS, "a usable tokenizer", "--model FOLDER"),), __doc__ or "")
