"""garbled.endpoint-answer: a server's answer to a prompt that arrives as it should is another than our forward pass of the folder gives.

Two prompts, as a conversation and, where it takes token ids, one longer than the server computes in a step; 16 tokens each, every one
after the server's own ones. Limits: KL(server | ours) above 0.05 nats over the most likely tokens that the server names, and another first
choice (S2.2: seen by users). Farther apart with the same choice clears nothing. A server of ours that computes in float32 parts by the
order of its sums: 2e-7 nats on the shipped model, on one rank and two; there 1e-3 is enough.

Mandatory where an endpoint or a run is asked about: one that tells no log-probabilities, or no longer serves, is not cleared. What is
wrong inside another engine its taps would say; this finding is one of where, not of what. Of a run of ours the settings are named that
compute otherwise than one rank: each can be taken back alone.
"""

from __future__ import annotations

from typing import Any

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed, skipped
from playbooks.garbled_output.facts import ANSWER, LIVE, SENT, SETTING, fact, facts
from playbooks.garbled_output.verdict import verdict, where

ID = "garbled.endpoint-answer"
MOST_KL = 0.05
EXACT_KL = 1e-3


def farthest(one: dict[str, Any]) -> tuple[bool, float]:
    """Sorts tokens: those that a user would see first, then by distance."""
    return not one["same"] and one["kl"] > MOST_KL, one["kl"]


def test(case: Case) -> Result:
    sent, answers = fact(case, SENT), facts(case, ANSWER)
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
    if not answers:
        return skipped("log-probabilities of the endpoint's answer")
    if sent["differ"] is not None:
        return passed("the prompts differ: answers say nothing")
    own = max(answers, key=farthest)
    seen, here = own["kl"], f"at token {own['at']} of {own['tokens']}, after a prompt of {own['of']}, its likeliest is {own['theirs']!r}"
    said = f"{here}, as ours" if own["same"] else f"{here}, ours is {own['ours']!r}"
    said += f"; KL {seen:.3g} over the {own['given']} tokens that it names"
    exact = live is not None and live["exact"]
    if seen <= (EXACT_KL if exact else MOST_KL):
        return passed(said, seen, EXACT_KL if exact else MOST_KL, "nats")
    if not exact and own["same"]:
        return skipped(f"an answer that is nearer, or another: {said}, above {MOST_KL} nats")
    remedy = "Compare taps: `workbench validate MODEL --record FILE` on one side, --against FILE on the other."
    if settings := facts(case, SETTING):
        backs = "; ".join(f"{one['name']} {one['value']}: {one['back']} ({one['means']})" for one in settings)
        remedy = f"Take back one setting at a time, with the same prompt and temperature 0: {backs}. {remedy}"
    title = "The server computes something else than this checkpoint"
    evidence = (ANSWER, "kl", where("prompt", own["prompt"]))
    return verdict(case, ID, title, said, remedy, evidence, seen, EXACT_KL if exact else MOST_KL, "nats", 0.8, basis="supported")


CHECK = Check(ID, "An endpoint's answer", True, 45, test, (), __doc__ or "")
