"""A server from outside, by its OpenAI-compatible interface: how it counts or tokenises one prompt, and where it begins its answer.

Every engine reports `usage.prompt_tokens`; vLLM, SGLang and ours answer /tokenize as well, and give log-probabilities.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from playbooks.garbled_output.examine.sent import USER, Fact, rendered, special
from playbooks.garbled_output.facts import ANSWER, SENT
from runtime.server.errors import ApiError
from runtime.server.tokenizer import Tokenizer
from traces.errors import UsageError, WorkbenchError

TIMEOUT = 60.0  # seconds for one request
MOST_BYTES = 4 << 20  # of an answer
TOP = 5


def endpoint_facts(url: str, folder: Path) -> Iterator[Fact]:
    """UsageError when the server does not answer. Without a usable template of the folder there is nothing to compare with: no facts."""
    try:
        tokenizer, text = Tokenizer.of(folder), rendered(folder)
    except (WorkbenchError, ApiError):
        return
    ours = tokenizer.encode(text)
    with httpx.Client(base_url=url.rstrip("/").removesuffix("/v1"), timeout=TIMEOUT, trust_env=False) as client:
        model = _model(client)
        talk = [{"role": "user", "content": USER}]
        body = {"model": model, "messages": talk, "max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": TOP}
        answer = _post(client, "/v1/chat/completions", body)
        if answer is None:
            raise UsageError(f"{url} does not answer /v1/chat/completions", "give the address of an OpenAI-compatible server")
        theirs = _ids(_post(client, "/tokenize", {"model": model, "messages": talk, "add_generation_prompt": True}))
        yield SENT, sent_fact(ours, theirs, answer, tokenizer)
        yield from _answer(answer, folder, ours, tokenizer)


def sent_fact(ours: list[int], theirs: list[int] | None, answer: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """`extra_first`: the special token that their prompt has once more at its start; None where it has not, or that is not known."""
    usage = answer.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
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


def _answer(answer: dict[str, Any], folder: Path, ours: list[int], tokenizer: Tokenizer) -> Iterator[Fact]:
    """Their most likely first tokens beside the log-probabilities of our own forward pass of the folder. `kl`: what these tokens add to
    KL(theirs | ours); a token that is none of ours counts as our least likely one."""
    from runtime.local import LocalSequence, load_local

    try:
        listed = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"][:TOP]
        given = {str(one["token"]): float(one["logprob"]) for one in listed if isinstance(one["logprob"], int | float)}
        given = {token: value for token, value in given.items() if math.isfinite(value) and value <= 0}
        model = load_local(folder)
    except (LookupError, TypeError, ValueError, OSError, WorkbenchError):
        return
    if not given or not ours or max(ours) >= model.arch.vocab:
        return
    logs = LocalSequence(model, len(ours)).feed(ours)[-1].double().log_softmax(-1).tolist()
    mine: dict[str, float] = {}
    for i, value in enumerate(logs):
        piece = tokenizer.piece(i)
        mine[piece] = max(mine.get(piece, -math.inf), value)
    floor = min(logs)
    kl = sum(math.exp(value) * (value - mine.get(token, floor)) for token, value in given.items())
    best, own = max(given, key=lambda token: given[token]), max(mine, key=lambda token: mine[token])
    shared = sum(token in mine for token in given)
    yield ANSWER, {"shared": shared, "given": len(given), "kl": kl, "theirs": best, "ours": own, "same": best == own}


def _model(client: httpx.Client) -> str:
    try:
        found = _read(client, "GET", "/v1/models") or {}
        return str(found["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{client.base_url} lists no model: {error}", "give the address of an OpenAI-compatible server") from error


def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """None where the server has no such path, or refuses."""
    try:
        return _read(client, "POST", path, body)
    except (httpx.HTTPError, ValueError):
        return None


def _read(client: httpx.Client, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """An object of at most MOST_BYTES, not one of which is kept beyond that; None for any other answer. httpx.HTTPError, ValueError."""
    with client.stream(method, path, json=body) as reply:
        held = bytearray()
        for part in reply.iter_bytes():
            held += part
            if len(held) > MOST_BYTES:
                return None
        found = json.loads(held) if reply.status_code == 200 else None
    return found if isinstance(found, dict) else None


def _ids(found: dict[str, Any] | None) -> list[int] | None:
    tokens = (found or {}).get("tokens")
    return tokens if isinstance(tokens, list) and all(isinstance(token, int) for token in tokens) else None
