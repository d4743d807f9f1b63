"""garbled.template: the chat template is missing, was made for another model, or renders otherwise than the reference's.

What is seen: echo, the model speaks for the user, or answers as if no question had been asked.

How it is told apart: from the folder alone. A template belongs to its tokenizer when every marker it writes is one token there, when the
generation prompt adds an assistant's header if the template knows of one, and when the message stands in the text. With a
reference folder: any difference of the
rendered text (reference/causes_oom_garbled_image.md, S2.3). A template written otherwise that renders the same is no finding.
"""

from __future__ import annotations

from typing import Any

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.garbled_output.facts import SENT, TEMPLATE, fact, need
from playbooks.garbled_output.verdict import verdict

ID = "garbled.template"
REMEDY = "Copy the model's own chat_template.jinja into the folder; never fall back to another one."


def test(case: Case) -> Result:
    own, good = fact(case, TEMPLATE) or {}, fact(case, TEMPLATE + "_reference")
    summary, field = _wrong(own), "tail"
    if summary is None and good is not None and "problem" not in good and own.get("talk") != good.get("talk"):
        summary, field = f"the rendered conversation differs from the reference's: ours ends with {own.get('tail', '')[-40:]!r}", "talk"
    sent = fact(case, SENT) or {}
    if summary is None and sent.get("differ") is not None and sent.get("extra_first") is None:
        place = f"from token {sent['differ']} on" if sent["known"] else "by number: it does not say which tokens"
        said = f"the endpoint's prompt has {sent['count']} tokens and the folder's {sent['ours']}; they differ {place}"
        counts = sent["count"], sent["ours"], "tokens"
        return verdict(case, ID, "The endpoint renders another prompt", said, REMEDY, (SENT, "count", ""), *counts)
    if summary is None:
        return passed(f"the template renders {own.get('count')} tokens, its markers are tokens of the tokenizer")
    field = "problem" if "problem" in own else field
    return verdict(
        case, ID, "The chat template is not this model's", summary, REMEDY, (TEMPLATE, field, ""), summary[:200], "no difference"
    )


def _wrong(own: dict[str, Any]) -> str | None:
    if "problem" in own:
        return f"the template cannot be used: {own['problem']}"
    if own["unknown"]:
        return f"the template writes {', '.join(own['unknown'][:4])}, which the tokenizer does not hold as one token"
    if not own["holds_message"] or not own["holds_talk"]:
        return "the template leaves out what was said"
    if own["headless"] or own["header"] < 0:
        return "the template adds no assistant's header for the answer"
    return None


CHECK = Check(ID, "Chat template", True, 10, test, (need(TEMPLATE, "a checkpoint folder", "--model FOLDER"),), __doc__ or "")
