"""garbled.weight-missing: a shard or a tensor is not there, or a file ends before its tensors do.

What is seen: an engine that drops it silently boots and answers nonsense (sglang#32279). Ours refuses.

How it is told apart: index, headers, file lengths and the tensors that the config calls for, without a forward pass.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.finding import subject
from playbooks.garbled_output.damage import MISSING, NEED, counted, of_kinds
from playbooks.garbled_output.facts import DAMAGE
from playbooks.garbled_output.verdict import verdict, where

ID = "garbled.weight-missing"


def test(case: Case) -> Result:
    lost = of_kinds(case, MISSING)
    if not lost:
        return passed("every tensor that index and config call for is there, whole", 0, 0, "tensors")
    first, count = lost[0], counted(case, MISSING)
    name = first["file"] or first["tensor"]
    summary = f"{count} damages, the first: {name}, {first['damage']}: {first['detail']}"
    return verdict(
        case, ID, "Weights are missing", summary, "Download the named files again, and verify them before serving.",
        (DAMAGE, "detail", where("damage", first["damage"])), count, 0, "damages", 0.97, "critical",
        about=subject("file", name, files=sorted({one["file"] for one in lost})),
    )  # fmt: skip


CHECK = Check(ID, "Missing weights", True, 20, test, (NEED,), __doc__ or "")
