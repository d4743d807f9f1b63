"""load.warmup: compiling, capturing graphs and warming up take longer than loading.

What is seen: weights are in place in seconds, and minutes pass before the first answer.

How it is told apart: by the seconds the engine states for compilation and capture. Our runtime does neither: a long warm-up of ours is a
host that is busy with something else.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.slow_load.account import NEED, slow, start

ID = "load.warmup"
SHARE = 0.5  # of the start
LEAST = 10.0  # seconds (reference section 1, S7 case 9: more than 10 s of capture)


def test(case: Case) -> Result:
    found = start(case)
    spent = float(found.facts.get("compile_seconds") or 0) + float(found.facts.get("capture_seconds") or 0)
    if found.loaded:
        ours = max(one.phases.get("warmup", 0.0) for one in found.loaded)
        return passed(f"our runtime compiles and captures nothing; its first steps took {ours:.1f} s of {found.seconds:.1f} s")
    if not spent:
        return skipped("seconds of compilation and capture; give the engine's log with --log")
    share = spent / max(found.seconds, 1e-9)
    said = f"compilation, capture and warm-up take {spent:.1f} s of {found.seconds:.1f} s"
    if share < SHARE or spent < LEAST:
        return passed(said, round(share, 3), SHARE, "of the start")
    return slow(
        case, ID, "Compiling and capturing take the time", [], spent, said[0].upper() + said[1:] + ".", share, SHARE, "of the start",
        Remedy(
            text="Keep the compile cache between starts, capture fewer sizes, or capture when first needed.",
            risk="low",
            verify="workbench diagnose slow-load",
        ),
        0.85,
    )  # fmt: skip


CHECK = Check(ID, "Warm-up longer than the load", mandatory=False, cost=18, test=test, needs=(NEED,), page=__doc__ or "")
