"""garbled.rope: base, scaling or layout of the rotary positions are not the model's.

How it is told apart: keys agree before they are turned and differ behind. A base shows from position 1 on and grows with the distance;
the layout of the pairs shows at position 0. A shifted position changes no answer, and is no finding (S2.2). A config that states two
bases is a warning, whatever the taps say.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result
from playbooks.garbled_output.facts import ROPE, fact
from playbooks.garbled_output.from_taps import from_taps
from playbooks.garbled_output.verdict import verdict

ID = "garbled.rope"
REMEDY = "Use the model's own rope settings; state the base in one place of config.json."
judge = from_taps(ID, "Positions are turned otherwise than the model was trained with", REMEDY, ("key", "latent"))


def test(case: Case) -> Result:
    found, own = judge(case), fact(case, ROPE) or {}
    if found.outcome == "fail" or not own.get("differ"):
        return found
    summary = "config.json states several bases: " + ", ".join(f"{where} {base}" for where, base in own["bases"].items())
    return verdict(
        case, ID, "Two bases of the positions are stated", summary, REMEDY, (ROPE, "bases", ""), len(own["bases"]), 1, "bases",
        0.4, "warning", "supported",
    )  # fmt: skip


CHECK = Check(ID, "Rotary positions", False, 50, test, (), __doc__ or "")
