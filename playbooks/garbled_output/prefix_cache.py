"""garbled.prefix-cache: a prompt whose beginning comes from the cache is answered otherwise than the same prompt computed.

Test: one prompt of token ids under a salt of its own, twice; the second time the server says how many tokens it took from the cache.
Limits: those of garbled.endpoint-answer (KL above 0.05 nats and another first choice). Taking the beginning from a cache changes the
arithmetic only by its order, so that no other cause explains it.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed, skipped
from playbooks.garbled_output.endpoint_answer import MOST_KL
from playbooks.garbled_output.facts import REUSED, SENT, fact
from playbooks.garbled_output.verdict import verdict

ID = "garbled.prefix-cache"


def test(case: Case) -> Result:
    if fact(case, SENT) is None:
        return not_applicable("no endpoint was asked")
    found = fact(case, REUSED)
    if found is None:
        return skipped("log-probabilities of a prompt of token ids, given twice")
    if not found["cached"] or found["cached_first"]:
        return skipped("a prompt that was computed first and cached then: the server reports no such tokens (cached_tokens)")
    said = f"{found['cached']} of {found['tokens']} tokens came from the cache; KL {found['kl']:.3g} to the same prompt computed"
    if found["same"] or found["kl"] <= MOST_KL:
        return passed(said, found["kl"], MOST_KL, "nats")
    remedy = "Serve without the prefix cache (--prefix-cache false), and look at what its key leaves out."
    title = "What is kept of a prompt changes its answer"
    return verdict(case, ID, title, said, remedy, (REUSED, "kl", ""), found["kl"], MOST_KL, "nats", 0.9)


CHECK = Check(ID, "Answers from the prefix cache", False, 46, test, (), __doc__ or "")
