"""A server from outside, by its OpenAI-compatible interface: how it counts or tokenises one prompt, how it answers, and whether what it
kept of the prompt changes the answer."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from playbooks.garbled_output.endpoint_answer import farthest
from playbooks.garbled_output.examine.sent import USER, Fact, rendered, special
from playbooks.garbled_output.facts import ANSWER, REUSED, SENT
from probes.asking import Asker, Likely, Told
from runtime.server.errors import ApiError
from runtime.server.tokenizer import Tokenizer
from traces.errors import BadAnswer, WorkbenchError

TOP = 5
WORDS = 16  # tokens of an answer that are compared
LONG = 64  # tokens of a prompt that fills blocks of every engine (16 to 64 tokens)
CHUNK = 512  # tokens of a step where the server's own number is not known
MOST_LONG = 2048  # tokens of a prompt: our own forward pass goes over it, too


def endpoint_facts(url: str, folder: Path, chunk: int = CHUNK) -> Iterator[Fact]:
    """`chunk`: tokens of a prompt that the server computes in one step, as far as that is known. Unreachable, BadAnswer. Without a usable
    template of the folder there is nothing to compare with: no facts."""
    try:
        tokenizer, text = Tokenizer.of(folder), rendered(folder)
    except (WorkbenchError, ApiError):
        return
    ours = tokenizer.encode(text)
    with Asker(url) as asker:
        told = asker.chat(USER, WORDS, top_logprobs=TOP)
        yield SENT, sent_fact(ours, asker.tokenize(USER), told.prompt_tokens, tokenizer)
        long = _filled(ours, min(chunk + LONG, (asker.longest or MOST_LONG) - WORDS, MOST_LONG))
        yield from answer_facts({"chat": (ours, told), **_of_ids(asker, {"long": long})}, folder, tokenizer)
        yield from reused_facts(asker, ours)


def _filled(ours: list[int], length: int) -> list[int]:
    """The prompt so often as it fits: a conversation that ends as it should."""
    return ours * max(1, length // max(1, len(ours)))


def _of_ids(asker: Asker, prompts: dict[str, list[int]]) -> dict[str, tuple[list[int], Told]]:
    """Answers to prompts of token ids; none where the server takes none."""
    try:
        return {name: (ids, asker.complete(ids, WORDS, logprobs=TOP)) for name, ids in prompts.items()}
    except BadAnswer:
        return {}


def sent_fact(ours: list[int], theirs: list[int] | None, counted: int | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """`extra_first`: the special token that their prompt has once more at its start; None where it has not, or that is not known."""
    count = len(theirs) if theirs is not None else counted
    fact: dict[str, Any] = {"count": count, "ours": len(ours), "counted": counted, "known": theirs is not None}
    fact |= {"extra_first": None, "differ": None}
    if theirs is None:
        return fact | {"differ": None if count is None else (0 if count != len(ours) else None)}
    if theirs != ours:
        pairs = zip(ours, theirs, strict=False)
        fact["differ"] = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
        if theirs[1:] == ours and special(tokenizer, theirs[0]):
            fact["extra_first"] = theirs[0]
    return fact | {"first": theirs[:8], "last": theirs[-8:]}


def answer_facts(answers: dict[str, tuple[list[int], Told]], folder: Path, tokenizer: Tokenizer) -> Iterator[Fact]:
    """What the server found likely at every token of its answers, beside the log-probabilities of our own forward pass of the folder over
    the same tokens. One fact a prompt: the token where they are farthest apart, rather one where a user would see it."""
    from runtime.local import LocalSequence, load_local

    try:
        model = load_local(folder)
    except (OSError, WorkbenchError):
        return
    pieces = [tokenizer.piece(i) for i in range(model.arch.vocab)]
    for name, (prompt, told) in answers.items():
        if not told.likely or not prompt or max(prompt) >= model.arch.vocab:
            continue
        ids = [*prompt, *_ids(told.tokens, pieces)[: len(told.likely) - 1]]  # the last one is only drawn
        logs = LocalSequence(model, len(ids)).feed(ids)[len(prompt) - 1 :].double().log_softmax(-1).tolist()
        found = [compared(given, own, pieces) | {"at": at} for at, (given, own) in enumerate(zip(told.likely, logs, strict=False)) if given]
        if found:
            yield ANSWER, max(found, key=farthest) | {"prompt": name, "tokens": len(found), "of": len(prompt)}


def _ids(tokens: Sequence[str], pieces: Sequence[str]) -> list[int]:
    """Up to the first token that is none of ours, or that two ids are written as."""
    known: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        known[piece] = -1 if piece in known else i
    found: list[int] = []
    for token in tokens:
        if known.get(token, -1) < 0:
            break
        found.append(known[token])
    return found


def compared(given: Likely, logs: Sequence[float], pieces: Sequence[str]) -> dict[str, Any]:
    """`kl`: what the tokens that the server names add to KL(theirs | ours); one that is none of ours counts as our least likely one."""
    mine: dict[str, float] = {}
    for piece, value in zip(pieces, logs, strict=True):
        mine[piece] = max(mine.get(piece, -math.inf), value)
    floor = min(logs)
    kl = sum(math.exp(value) * (value - mine.get(token, floor)) for token, value in given)
    best, own = given[0][0], max(mine, key=lambda token: mine[token])
    shared = sum(token in mine for token, _ in given)
    return {"shared": shared, "given": len(given), "kl": kl, "theirs": best, "ours": own, "same": best == own}


def reused_facts(asker: Asker, ours: list[int]) -> Iterator[Fact]:
    """One long prompt under a salt of its own, computed, and then again: what the second answer took from the cache is the server's to say
    (cached_tokens). No fact where the server takes no token ids, or tells no log-probabilities."""
    prompt = (ours * (LONG // max(1, len(ours)) + 1))[:LONG]
    salt = secrets.token_hex(8)
    try:
        first, again = (asker.complete(prompt, 1, logprobs=TOP, cache_salt=salt) for _ in range(2))
    except BadAnswer:
        return
    if first.likely and again.likely and first.likely[0] and again.likely[0]:
        cold, kept = first.likely[0], dict(again.likely[0])
        floor = min(kept.values())
        kl = sum(math.exp(value) * (value - kept.get(token, floor)) for token, value in cold)
        same = cold[0][0] == again.likely[0][0][0]
        yield REUSED, {"cached": again.cached, "cached_first": first.cached, "kl": kl, "same": same, "tokens": len(prompt)}
