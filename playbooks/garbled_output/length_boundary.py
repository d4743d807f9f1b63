"""garbled.length-boundary: a prompt that is computed in chunks is not the prompt that is computed in one.

What is seen: short prompts are fine, and long ones lose their beginning (imp#114).

How it is told apart: without a reference. The first diverging position is the edge of a chunk, keys in the cache are right, and what
attention makes of them is not.
"""

from __future__ import annotations

from typing import Any

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.garbled_output.facts import CHUNKS, FINITE, fact, need
from playbooks.garbled_output.verdict import verdict

ID = "garbled.length-boundary"


def test(case: Case) -> Result:
    own = fact(case, CHUNKS) or {}
    if (fact(case, FINITE) or {}).get("first") is not None:
        return skipped("finite values: nothing can be compared")
    if own["tokens"] <= own["chunk"]:
        return skipped(f"a prompt of more than one chunk: {own['tokens']} tokens, chunks of {own['chunk']}; record a longer reference")
    if own.get("first") is None:
        return passed(f"{own.get('tokens')} tokens in chunks of {own.get('chunk')} equal the prompt in one")
    if not own["visible"]:
        return passed(f"{own['first']} diverges in chunks and the answers do not change: KL {own['kl']}, top-1 agreement {own['top1']}")
    if not of_chunks(own):
        return passed(f"{own['first']} diverges in chunks, before attention does: no matter of where a prompt is cut")
    edge = own["first_hit"]
    summary = (
        f"in chunks of {own['chunk']} tokens {own['first']} diverges by {own['relative']} from position {edge} on; KL {own['kl']}, "
        f"top-1 agreement {own['top1']}"
    )
    remedy = "Give every prefill chunk the past keys and its own positions; until then prefill in one chunk."
    at_edge = edge is not None and edge % own["chunk"] == 0
    return verdict(
        case, ID, "Prompts in chunks are computed without their past", summary, remedy, (CHUNKS, "first_hit", ""), edge, own["chunk"],
        "position", 0.95 if at_edge else 0.7,
    )  # fmt: skip


def of_chunks(own: dict[str, Any]) -> bool:
    """Whether chunks part from the whole in attention, and users see it.
    A router that parts first looks at the size of the batch, as a capacity does."""
    return own.get("first") is not None and own["visible"] and own["first"].endswith((".attention", ".key", ".value", ".latent"))


CHECK = Check(ID, "Chunked prefill", True, 41, test, (need(CHUNKS, "a forward pass", "a model that can be loaded"),), __doc__ or "")
