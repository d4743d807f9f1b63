"""garbled.tie-mismatch: the output head is said to be the embedding, and a head of its own is stored; or two flags contradict.

What is seen: hidden states are right and every answer is nonsense (transformers#43429, pegainfer#544).

How it is told apart: the flags of config and text_config against the stored tensors. A stored head that equals the embedding is harmless.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.garbled_output.facts import TIES, fact, need
from playbooks.garbled_output.verdict import verdict

ID = "garbled.tie-mismatch"


def test(case: Case) -> Result:
    own = fact(case, TIES) or {}
    flags = [own.get(name) for name in ("top", "text_config") if own.get(name) is not None]
    tied = any(flags)
    said = f"tie_word_embeddings is {own.get('top')} at the top and {own.get('text_config')} in text_config"
    if not (tied and own.get("head") is not None and own.get("equal") is False):
        return passed(f"{said}; a head of its own: {own.get('head') or 'none'}")
    remedy = "Set tie_word_embeddings to false wherever it stands: the head in the file is another than the embedding."
    return verdict(
        case, ID, "The output head is said to be the embedding, and is not", f"{said}, and {own['head']} differs from it", remedy,
        (TIES, "equal", ""), False, True, "same bytes",
    )  # fmt: skip


CHECK = Check(ID, "Tied output head", True, 22, test, (need(TIES, "weights that can be opened", "--model FOLDER"),), __doc__ or "")
