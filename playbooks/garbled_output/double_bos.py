"""garbled.double-bos: the prompt begins twice, or an endpoint's prompt has one token more than the template gives.

What is seen: answers that are a little worse, most at the start: the effect fades with position (S2.2).

How it is told apart: the ids. Two equal special tokens at the start, where the reference (if there is one) has fewer. Templates that begin
with two different special tokens are as they should be.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.garbled_output.facts import SENT, TEMPLATE, fact, need
from playbooks.garbled_output.verdict import verdict

ID = "garbled.double-bos"
REMEDY = "Tokenise the rendered text without adding special tokens, and let the template alone write the first one."


def test(case: Case) -> Result:
    own, good, sent = fact(case, TEMPLATE) or {}, fact(case, TEMPLATE + "_reference"), fact(case, SENT) or {}
    title = "The prompt begins with its first token twice"
    if sent.get("extra_first") is not None:
        summary = (
            f"the endpoint sends {sent['count']} tokens where the template gives {sent['ours']}: token {sent['extra_first']} once more"
        )
        return verdict(case, ID, title, summary, REMEDY, (SENT, "count", ""), sent["count"], sent["ours"], "tokens")
    twice = bool(own.get("repeated_first"))
    usual = bool(good and good.get("repeated_first"))
    if not twice or usual:
        return passed(f"the prompt begins with {own.get('first', [])[:3]}")
    times = next((i for i, token in enumerate(own["first"]) if token != own["first"][0]), len(own["first"]))
    return verdict(case, ID, title, f"the prompt begins with {own['first'][:4]}", REMEDY, (TEMPLATE, "first", ""), times, 1, "times")


CHECK = Check(ID, "Begin-of-text token", True, 12, test, (need(TEMPLATE, "a checkpoint folder", "--model FOLDER"),), __doc__ or "")
