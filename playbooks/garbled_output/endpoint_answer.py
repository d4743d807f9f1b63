"""garbled.endpoint-answer: a server's answer to a prompt that arrives as it should begins otherwise than our forward pass of the folder.

Limits: KL(server | ours) above 0.05 nats over the most likely tokens that the server names, and another first choice (S2.2: seen by
users). Mandatory where an endpoint is asked: one that tells no log-probabilities is not cleared. What is wrong
inside another engine its taps would say; this finding is one of where, not of what.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed, skipped
from playbooks.garbled_output.facts import ANSWER, SENT, fact
from playbooks.garbled_output.verdict import verdict

ID = "garbled.endpoint-answer"
MOST_KL = 0.05


def test(case: Case) -> Result:
    sent, own = fact(case, SENT), fact(case, ANSWER)
    if sent is None:
        return not_applicable("no endpoint was asked")
    if sent["count"] is None:
        return skipped("the number of tokens of the endpoint's prompt: it answers no /tokenize and reports no usage")
    if own is None:
        return skipped("log-probabilities of the endpoint's answer")
    if sent["differ"] is not None:
        return passed("the prompts differ: answers say nothing")
    named = f"KL {own['kl']:.3g} over the {own['given']} tokens that it names"
    said = f"the answer begins with {own['theirs']!r}, ours with {own['ours']!r}; {named}"
    if own["same"] or own["kl"] <= MOST_KL:
        return passed(said, own["kl"], MOST_KL, "nats")
    remedy = "Compare taps: `workbench validate MODEL --record FILE` on one side, --against FILE on the other."
    title = "The server computes something else than this checkpoint"
    return verdict(case, ID, title, said, remedy, (ANSWER, "kl", ""), own["kl"], MOST_KL, "nats", 0.8, basis="supported")


CHECK = Check(ID, "First token of an endpoint's answer", True, 45, test, (), __doc__ or "")
