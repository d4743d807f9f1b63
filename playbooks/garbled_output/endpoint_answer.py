"""garbled.endpoint-answer: a server's answer to a prompt that arrives as it should is another than our forward pass of the folder gives.

Limits: KL(server | ours) above 0.05 nats over the most likely tokens that the server names, and another first choice (S2.2: seen by
users), at any of the first 16 tokens, each after the server's own ones. Mandatory where an endpoint or a run is asked about: one that
tells no log-probabilities, or no longer serves, is not cleared. What is wrong inside another engine its taps would say; this finding is
one of where, not of what. Of a run of ours the settings are named that compute otherwise than one rank: each can be taken back alone.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed, skipped
from playbooks.garbled_output.facts import ANSWER, LIVE, SENT, SETTING, fact, facts
from playbooks.garbled_output.verdict import verdict

ID = "garbled.endpoint-answer"
MOST_KL = 0.05


def test(case: Case) -> Result:
    sent, own = fact(case, SENT), fact(case, ANSWER)
    live = fact(case, LIVE)
    if live is not None and not live["asked"]:
        serve = f"`workbench serve {live['folder']}`, then `workbench diagnose garbled-output --run latest` while it serves"
        return skipped(f"answers of the server: {live['why']}; {serve}")
    if sent is None and live is None:
        return not_applicable("no endpoint was asked")
    if sent is None:
        return skipped("a prompt to compare: the folder's template or tokenizer cannot be used")
    if sent["count"] is None:
        return skipped("the number of tokens of the endpoint's prompt: it answers no /tokenize and reports no usage")
    if own is None:
        return skipped("log-probabilities of the endpoint's answer")
    if sent["differ"] is not None:
        return passed("the prompts differ: answers say nothing")
    named = f"KL {own['kl']:.3g} over the {own['given']} tokens that it names"
    where = f"at token {own['at']} of {own['tokens']} its likeliest is {own['theirs']!r}"
    said = f"{where}, as ours; {named}" if own["same"] else f"{where}, ours is {own['ours']!r}; {named}"
    if own["same"] or own["kl"] <= MOST_KL:
        return passed(said, own["kl"], MOST_KL, "nats")
    remedy = "Compare taps: `workbench validate MODEL --record FILE` on one side, --against FILE on the other."
    if settings := facts(case, SETTING):
        backs = "; ".join(f"{one['name']} {one['value']}: {one['back']} ({one['means']})" for one in settings)
        remedy = f"Take back one setting at a time, with the same prompt and temperature 0: {backs}. {remedy}"
    title = "The server computes something else than this checkpoint"
    return verdict(case, ID, title, said, remedy, (ANSWER, "kl", ""), own["kl"], MOST_KL, "nats", 0.8, basis="supported")


CHECK = Check(ID, "An endpoint's answer", True, 45, test, (), __doc__ or "")
