"""garbled.weight-corrupt: files of the right size with wrong bytes: zeroed rows, values that are not finite, one tensor or one expert that
is scaled against its siblings.

How it is told apart: from the stored values alone (a right-sized file with a zeroed tail loads silently, S2.3); rows of the embedding may
be zero. What statistics miss, a reference shows: only the tokens that were sent to one expert are wrong, and its answer is the
reference's times a number.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.finding import subject
from playbooks.garbled_output.damage import CORRUPT, NEED, counted, of_kinds, read_whole
from playbooks.garbled_output.facts import COVERAGE, DAMAGE, TRIAL, fact
from playbooks.garbled_output.signature import signature
from playbooks.garbled_output.verdict import verdict, where

ID = "garbled.weight-corrupt"
REMEDY = "Download the named files again by hash: resuming a download is no repair."
TITLE = "Weights are corrupt"


def test(case: Case) -> Result:
    bad = of_kinds(case, CORRUPT)
    if bad:
        first, count = bad[0], counted(case, CORRUPT)
        summary = f"{first['tensor'] or first['file']}: {first['detail']}" + (f"; {count} tensors in all" if count > 1 else "")
        about = subject("file", first["file"], files=sorted({one["file"] for one in bad}))
        return verdict(
            case,
            ID,
            TITLE,
            summary,
            REMEDY,
            (DAMAGE, "detail", where("damage", first["damage"])),
            count,
            0,
            "tensors",
            0.95,
            about=about,
        )
    seen = signature(case)
    if seen is not None and seen.cause == ID:
        about = subject("expert", ", ".join(map(str, seen.experts)), layers=[seen.layer], experts=list(seen.experts))
        return verdict(
            case,
            ID,
            TITLE,
            seen.summary,
            REMEDY,
            (TRIAL, "gain", where("trial", "expert")),
            seen.observed,
            seen.threshold,
            seen.unit,
            seen.score,
            about=about,
        )
    forced = (fact(case, COVERAGE) or {}).get("bad", [])
    if forced:
        return verdict(case, ID, TITLE, forced[0], REMEDY, (COVERAGE, "bad", ""), score=0.85)
    if not read_whole(case):
        return skipped("the stored values; they were not read: run `workbench verify FOLDER --deep`")
    return passed("every value was read: none is not finite, no rows are zero, no tensor stands out", 0, 0, "tensors")


CHECK = Check(ID, "Corrupt weights", True, 30, test, (NEED,), __doc__ or "")
