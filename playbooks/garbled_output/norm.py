"""garbled.norm: norms have another epsilon than the model was trained with.

What is seen: mostly nothing. Rows with a root mean square of a half hide an epsilon that is ten times too large; a prompt whose rows are
small, as embeddings often are, is answered otherwise (S2.2).

How it is told apart: each norm of the stream is given a faint row beside the prompt's own, and leaves as much of it as its epsilon lets it.
Where the prompt's answers change, and a norm is the first tap that diverges, that is the cause; where they do not, it is a warning. Norms
inside attention are not given such a row.
"""

from __future__ import annotations

from typing import Any

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.finding import subject
from playbooks.garbled_output.facts import NORMS, facts
from playbooks.garbled_output.from_taps import REFERENCE, one_sided
from playbooks.garbled_output.signature import signature
from playbooks.garbled_output.verdict import verdict

ID = "garbled.norm"
TITLE = "Norms have another epsilon than the reference's"
REMEDY = "Use the model's own rms_norm_eps, added to the mean of the squares, in float32."


def test(case: Case) -> Result:
    compared = facts(case, NORMS)
    if not compared:
        return skipped(REFERENCE)
    known = [one for one in compared if one["count"]]
    if not known:
        return one_sided(["faint rows of the norms"])
    bad = next((one for one in known if one["unlike"]), None)
    if bad is None:
        return passed(f"{known[0]['count']} norms leave as much of a faint row as the reference's", 0, 0, "norms")
    seen = signature(case)
    visible = seen is not None and seen.cause == ID
    summary = f"{seen.summary}; {_told(bad)}" if seen is not None and visible else _told(bad)
    return verdict(
        case, ID, TITLE, summary, REMEDY, (NORMS, "ours", "attrs->>'$.ours' IS NOT NULL"), bad["ours"], bad["theirs"], "epsilon",
        0.95 if visible else 0.4, "error" if visible else "warning", "established", subject("setting", "rms_norm_eps"),
    )  # fmt: skip


def _told(bad: dict[str, Any]) -> str:
    unlike = bad["unlike"]
    where = unlike[0] if len(unlike) == 1 else f"{len(unlike)} of {bad['count']} norms, {unlike[0]} first,"
    verb = "leaves" if len(unlike) == 1 else "leave"
    said = f"{where} {verb} something else of a faint row: the epsilon is {_number(bad['ours'])}, the reference's {_number(bad['theirs'])}"
    smallest = bad["smallest"]
    return said + ("" if smallest is None else f"; the prompt's faintest row has a root mean square of {smallest:.2g}")


def _number(value: float | None) -> str:
    return "too large to tell" if value is None else f"{value:.2g}"


CHECK = Check(ID, "Norms", False, 49, test, (), __doc__ or "")
