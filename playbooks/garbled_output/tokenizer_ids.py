"""garbled.tokenizer-ids: the tokenizer gives ids that the embedding has no row for, or other ids than the reference's.

How it is told apart: the largest id against the vocabulary of the config; and strings on which tokenizers part (S2.3), against a
reference folder.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.garbled_output.facts import VOCABULARY, fact, need
from playbooks.garbled_output.verdict import verdict

ID = "garbled.tokenizer-ids"
REMEDY = "Use the tokenizer files that were published with the weights."


def test(case: Case) -> Result:
    own, good = fact(case, VOCABULARY) or {}, fact(case, VOCABULARY + "_reference") or {}
    title = "The tokenizer does not belong to the weights"
    if own.get("problem"):
        return verdict(case, ID, title, f"the tokenizer cannot be used: {own['problem']}", REMEDY, (VOCABULARY, "problem", ""))
    if own.get("outside_count"):
        summary = (
            f"{own['outside_count']} tokens have ids of {own['rows']} and above, which the embedding has no rows for: {own['outside'][:4]}"
        )
        return verdict(case, ID, title, summary, REMEDY, (VOCABULARY, "largest", ""), own["largest"], own["rows"], "token id")
    other = [text for text, ids in own.get("probe", {}).items() if good.get("probe", {}).get(text, ids) != ids]
    if other:
        summary = f"{len(other)} of {len(own['probe'])} probe strings have other ids than the reference's, as {other[0]!r}"
        return verdict(case, ID, title, summary, REMEDY, (VOCABULARY, "probe", ""), len(other), 0, "strings")
    if not isinstance(own.get("rows"), int):
        return skipped("the rows of the embedding: vocab_size in config.json")
    return passed(f"the largest id is {own.get('largest')}, below {own.get('rows')}", own.get("largest"), own.get("rows"), "token id")


CHECK = Check(ID, "Tokenizer", True, 11, test, (need(VOCABULARY, "a checkpoint folder", "--model FOLDER"),), __doc__ or "")
