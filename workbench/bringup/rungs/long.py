"""Rung 11: a long prompt: many steps, many KV blocks, and the prefix cache."""

from __future__ import annotations

from probes.asking import Asker
from traces.errors import BadAnswer
from workbench.bringup.agreement import parting
from workbench.bringup.document import Evidence
from workbench.bringup.rung import Outcome, Rung, failed, passed, skipped
from workbench.bringup.site import Site, diagnose

TOKENS = 16
SENTENCE = "The robot walked along the river and counted the stones. "
UNSAID = 2048  # tokens that are tried where neither the person nor the server names a limit


def climb(site: Site) -> Outcome:
    assert site.url is not None
    asker = Asker(site.url, site.options.served_name)
    wanted, longest = site.options.context, asker.longest
    limit = Evidence("longest sequence the server takes", "not told" if longest is None else f"{longest} tokens", _wanted(wanted))
    more = diagnose("oom-on-load", site.run_flag)
    if wanted is not None and longest is not None and longest < wanted:
        told = f"the server takes {longest} tokens and {wanted} were asked for: its KV cache or max_model_len"
        return failed(told, limit, next=("workbench plan MODEL --context N", *more))
    target = wanted or longest or UNSAID
    measured = [asker.chat(SENTENCE * times, 1).prompt_tokens for times in (1, 2)]
    known = [tokens for tokens in measured if tokens is not None]
    if len(known) < len(measured):
        return skipped("the server does not tell prompt tokens: a long prompt cannot be measured", limit)
    text = _text(known[0], known[1], target - TOKENS)
    if not text:
        return skipped(f"{target} tokens leave no room for a prompt beside the template", limit)
    try:
        first, second = asker.chat(text, TOKENS), asker.chat(text, TOKENS)
    except BadAnswer as error:
        return failed(f"a prompt of about {target} tokens was refused: {error.message}", limit, next=more)
    cached = "not told" if second.cached is None else f"{second.cached} tokens"
    evidence = [limit, Evidence("prompt", f"{first.prompt_tokens} tokens"), Evidence("answer", first.text)]
    evidence.append(Evidence("of the second prompt in the prefix cache", cached))
    others = [("asked a second time", second)]
    try:
        others.append(("computed again under another salt", asker.chat(text, TOKENS, cache_salt="bringup")))
    except BadAnswer as error:
        evidence.append(Evidence("computed again", f"the engine takes no cache_salt: {error.message}"))
    asker.close()
    if not first.units:
        told = f"a prompt of {first.prompt_tokens} tokens was answered with neither tokens nor text"
        return failed(told, *evidence, next=diagnose("garbled-output", site.run_flag))
    ties = 0
    for name, other in others:
        found = parting(first.units, other.units, first.gaps)
        near = found.near_tie(site.full_precision) if found is not None else True
        if found is not None and near is None:
            return skipped(f"the answers to a prompt, {name}, differ, and the server tells no log-probabilities", *evidence)
        if found is not None and not near:
            told = f"the answers to a prompt of {first.prompt_tokens} tokens, {name}, {found.words}"
            return failed(told, *evidence, Evidence(name, other.text, first.text), next=diagnose("garbled-output", site.run_flag))
        ties += found is not None
    told = f"a prompt of {first.prompt_tokens} tokens answered {len(others) + 1} times alike, {ties} of them up to a near tie"
    return passed(f"{told}; in the prefix cache the second time: {cached}", *evidence)


def _text(one: int, two: int, room: int) -> str:
    """Sentences that fill most of `room` tokens, where prompts of one and two take so many; empty when not even one fits."""
    return SENTENCE * int((room - one) * 0.95 / max(two - one, 1))


def _wanted(context: int | None) -> str:
    return "" if context is None else f"at least {context} (--context)"


RUNG = Rung(
    "long", "long prompts: several steps, many KV blocks, reuse", ("environment", "config", "weights", "settings", "endpoint"), climb,
    asks=True,
)  # fmt: skip
