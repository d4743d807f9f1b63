"""image.placeholder-mismatch as seen from outside, and what opposite pairs tell: a server that does not see, or sees things exchanged.

A model that cannot see answers both pictures of a pair alike and scores 50 %; a keyword test is passed by a blind model. Tokens by size
are compared as differences, so that the template's own tokens cancel. Where two pictures are answered alike, a question under a salt of its
own tells a cache that mixes them up from a model that does not see. Answers are those of a model: what they show is never established.
Mandatory where a server is what was asked about: tensors that are prepared well do not show that they reach the model.
"""

from __future__ import annotations

import json
import re
from typing import Any

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed, skipped
from playbooks.document import Basis, Finding, Remedy, Severity
from playbooks.finding import finding, subject
from playbooks.image_drift.asked import NAME
from playbooks.image_drift.probe import FOLDER, probes

SAME = {"upper": "top", "lower": "bottom"}
AROUND = 16  # tokens that a template may put around a picture: begin, end, newline, a label


def test(case: Case) -> Result:
    asked = answers(case)
    if asked is None:
        return not_applicable("no server was asked") if probes(case) else skipped("answers of a server: --run of a live one, or --endpoint")
    if "pairs" not in asked:
        return skipped(f"answers of the server: {asked['why']}; {again(asked)}")
    silent = not any(one["answer"].strip() for one in asked["pairs"])
    found = [*_counts(case, asked), *([] if silent else _pairs(case, asked["pairs"]))]
    right = sum(_said(one) == one["want"] for one in asked["pairs"])
    said = (
        " ".join(one.summary for one in found)
        or f"{right} of {len(asked['pairs'])} pictures are named, and sizes cost the tokens they should"
    )
    if found:
        return Result("fail", said, right, len(asked["pairs"]), "pictures named", tuple(found))
    if silent:
        return skipped("answers in words: this model says nothing within the first tokens, as one that thinks before it answers")
    if right < len(asked["pairs"]):
        return skipped(f"a model that names every picture: this one names {right} of {len(asked['pairs'])}, from which nothing follows")
    return passed(said, right, len(asked["pairs"]), "pictures named")


def answers(case: Case) -> dict[str, Any] | None:
    """What was asked of a server or of a run; None where the run is no such examination."""
    path = case.run.path / FOLDER / NAME
    return json.loads(path.read_bytes()) if path.exists() else None


def again(asked: dict[str, Any]) -> str:
    """The commands that would decide what a run that is over cannot."""
    return f"`workbench serve {asked['folder']}`, then `workbench diagnose image-drift --run latest` while it serves"


def _counts(case: Case, asked: dict[str, Any]) -> list[Finding]:
    first, text = asked["counts"][0], asked["text"]
    if all(one["tokens"] - text < 2 for one in asked["counts"]):
        said = "A picture adds no tokens to the prompt: it does not reach the model."
        return [_made(case, "image.placeholder-mismatch", said, "error", 0.95, "established")]
    wrong = [one for one in asked["counts"][1:] if one["tokens"] - first["tokens"] != one["expected"] - first["expected"]]
    around = first["tokens"] - text - first["expected"]
    if not wrong and -2 <= around <= AROUND:
        return []
    seen = ", ".join(f"{one['width']} x {one['height']}: {one['tokens'] - text} (recipe {one['expected']})" for one in asked["counts"])
    said = f"Pictures cost other numbers of tokens than the recipe says ({seen}): another budget, factor or number of placeholders."
    return [_made(case, "image.placeholder-mismatch", said, "error", 0.7, "supported")]


def _pairs(case: Case, pairs: list[dict[str, Any]]) -> list[Finding]:
    both = [(pairs[n], pairs[n + 1]) for n in range(0, len(pairs), 2)]
    exchanged = [(a, b) for a, b in both if _said(a) == a["other"] and _said(b) == b["other"]]
    found = []
    for a, _ in exchanged:
        cause = "image.channel-order" if a["want"] in ("red", "blue") else "image.exif"
        found.append(
            _made(case, cause, f"The server takes {a['want']} for {a['other']}, and the other way round.", "error", 0.7, "supported")
        )
    mixed = [(a, b) for a, b in both if _said(a) == a["want"] == _said(b) and _said({**b, "answer": b.get("apart") or ""}) == b["want"]]
    if mixed:
        a, b = mixed[0]
        said = (
            f"A picture of {b['want']!r} that follows one of {a['want']!r} is answered as that one ({len(mixed)} of {len(both)} pairs), "
            "and rightly when nothing that is cached may be used: pictures share a key."
        )
        return [*found, _made(case, "image.cross-request-cache", said, "error", 0.9, "supported")]
    if all(_said(a) == _said(b) or "" in (_said(a), _said(b)) for a, b in both):
        said = "Opposite pictures get the same answer, in every pair: the model does not see them, or does not answer such questions."
        found.append(_made(case, "image.placeholder-mismatch", said, "warning", 0.4, "hypothesis"))
    return found


def _said(one: dict[str, Any]) -> str:
    """The one of both words that the answer holds; empty for neither or both."""
    words = {SAME.get(word, word) for word in re.findall(r"[a-z]+", one["answer"].lower())}
    held = [word for word in (one["want"], one["other"]) if word in words]
    return held[0] if len(held) == 1 else ""


def _made(case: Case, cause: str, said: str, severity: Severity, score: float, basis: Basis) -> Finding:
    remedy = Remedy(
        text="Compare the tensor of one picture: --run of a live server of ours; of another engine a dump, --image and --observed.",
        risk="none",
        verify="workbench diagnose image-drift",
    )
    return finding(
        case, cause, severity, subject("image", "endpoint"), said.split(":")[0].rstrip("."), said, score, basis,
        evidence=(case.derived("questions to the server", said, kind="command"),), remedy=(remedy,),
    )  # fmt: skip


CHECK = Check("image.sight", "The server sees pictures", mandatory=True, cost=4, test=test, page=__doc__ or "")
