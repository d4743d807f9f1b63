"""garbled.weight-unread: the files hold tensors that the config does not call for, such as biases of the attention.

What is seen: an engine that ignores unknown names computes without them. Heads of multi-token prediction and vision towers that are
known and skipped are no finding; they are notes of the verification.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.finding import subject
from playbooks.garbled_output.damage import NEED, UNLISTED, UNREAD, counted, of_kinds
from playbooks.garbled_output.facts import DAMAGE
from playbooks.garbled_output.verdict import verdict, where

ID = "garbled.weight-unread"


def test(case: Case) -> Result:
    extra = of_kinds(case, UNREAD)
    if not extra:
        return _unlisted(case)
    names, count = sorted({one["tensor"] or one["file"] for one in extra}), counted(case, UNREAD)
    summary = f"{count} stored tensors have no place in the model that config.json describes, as {names[0]}"
    remedy = "Use the config.json that belongs to the weights, with its flags for biases and numbers of layers and experts."
    return verdict(
        case, ID, "The config leaves out stored weights", summary, remedy, (DAMAGE, "tensor", where("damage", "extra")), count,
        0, "tensors", 0.9, about=subject("file", extra[0]["file"], tensors=names[:16]),
    )  # fmt: skip


def _unlisted(case: Case) -> Result:
    """Files beside those that the index lists: an engine that reads every file of the folder would read them, too."""
    files = sorted({one["file"] for one in of_kinds(case, UNLISTED)})
    if not files:
        return passed("every stored tensor has a place in the model", 0, 0, "tensors")
    count = counted(case, UNLISTED)
    summary = f"{count} files of weights are in the folder and not in the index, as {files[0]}"
    remedy = "Remove the files that the index does not list, or use the index that belongs to them."
    return verdict(
        case, ID, "The index leaves out files of weights", summary, remedy, (DAMAGE, "file", where("damage", "unlisted-file")), count, 0,
        "files", 0.5, "warning", "supported", about=subject("file", files[0], files=files[:16]),
    )  # fmt: skip


CHECK = Check(ID, "Weights without a place", True, 21, test, (NEED,), __doc__ or "")
