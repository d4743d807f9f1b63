"""A server of another make, from outside: a loopback server that answers as vLLM does, and tokenises one prompt in its own way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from playbooks.document import CheckRecord, Diagnosis
from playbooks.garbled_output.examine.endpoint import endpoint_facts
from playbooks.garbled_output.examine.sent import rendered
from playbooks.garbled_output.facts import ANSWER, REUSED, SENT
from runtime.local import LocalSequence, load_local
from runtime.server.tokenizer import Tokenizer
from runtime.shipped import shapes_moe
from traces.errors import BadAnswer, Unreachable

FOLDER = Path(shapes_moe())
Judged = Callable[[Any], tuple[Diagnosis, dict[str, CheckRecord]]]
START = 1000  # <|im_start|>, the first token of the shipped template


@pytest.fixture
def server(http_server: Callable[..., str]) -> Callable[[dict[str, Any]], str]:
    """server(answers by path) -> its URL; a path without an answer is 404, a list is given out one by one."""

    def start(answers: dict[str, Any]) -> str:
        def reply(method: str, path: str) -> tuple[int, bytes]:
            found = answers.get(path, {})
            return 200 if path in answers else 404, json.dumps(found.pop(0) if isinstance(found, list) else found).encode()

        return http_server(reply)

    return start


def ours() -> list[int]:
    return Tokenizer.of(FOLDER).encode(rendered(FOLDER))


def answers(tokens: list[int] | None, count: int, logprobs: Any = None) -> dict[str, Any]:
    chat = {"choices": [{"logprobs": logprobs, "message": {"content": "x"}}], "usage": {"prompt_tokens": count}}
    found: dict[str, Any] = {"/v1/models": {"data": [{"id": "m"}]}, "/v1/chat/completions": chat}
    return found | ({} if tokens is None else {"/tokenize": {"tokens": tokens}})


def listed(logprobs: dict[str, float | None]) -> dict[str, Any]:
    top = [{"token": token, "logprob": value} for token, value in logprobs.items()]
    return {"content": [{"token": top[0]["token"], "top_logprobs": top}]}


def test_a_token_once_more_at_the_start_is_seen(server: Callable[[dict[str, Any]], str]) -> None:
    facts = dict(endpoint_facts(server(answers([START, *ours()], len(ours()) + 1)), FOLDER))
    assert facts[SENT]["extra_first"] == START
    assert facts[SENT]["count"] == facts[SENT]["ours"] + 1


def test_another_prompt_is_told_by_its_place(server: Callable[[dict[str, Any]], str]) -> None:
    facts = dict(endpoint_facts(server(answers([*ours()[:5], 7, *ours()[6:]], len(ours()))), FOLDER))
    assert (facts[SENT]["differ"], facts[SENT]["extra_first"]) == (5, None)


def test_without_tokenize_the_number_is_compared(server: Callable[[dict[str, Any]], str]) -> None:
    same = dict(endpoint_facts(server(answers(None, len(ours()))), FOLDER))
    other = dict(endpoint_facts(server(answers(None, len(ours()) + 3)), FOLDER))
    assert same[SENT]["differ"] is None
    assert other[SENT]["differ"] == 0
    assert not other[SENT]["known"]


def test_an_answer_that_we_would_not_give_is_far_away(server: Callable[[dict[str, Any]], str], judged: Judged) -> None:
    """A server that is sure of a token which the trained model finds unlikely."""
    wrong = listed({"<|im_end|>": -0.01})
    assert not dict(endpoint_facts(server(answers(ours(), len(ours()), wrong)), FOLDER))[ANSWER]["same"]
    found, _ = judged(endpoint_facts(server(answers(ours(), len(ours()), wrong)), FOLDER))
    assert "garbled.endpoint-answer" in {one.id for one in found.findings}


@pytest.mark.parametrize("token", ["<|im_end|>", "no token of ours"])
def test_a_server_that_is_sure_of_another_token_is_found(server: Callable[[dict[str, Any]], str], token: str) -> None:
    """Ours is named as well, and unlikely there; what is impossible, or has no number, counts for nothing."""
    right = dict(endpoint_facts(server(answers(ours(), len(ours()), listed({"x": -0.1}))), FOLDER))[ANSWER]["ours"]
    given = listed({token: -0.001, right: -7.0, "never": -math.inf, "unknown": None})
    own = dict(endpoint_facts(server(answers(ours(), len(ours()), given)), FOLDER))[ANSWER]
    assert (own["same"], own["theirs"], own["given"]) == (False, token, 2)
    assert own["kl"] > 1


def test_our_own_answer_is_no_finding_and_none_is_no_clearance(server: Callable[[dict[str, Any]], str], judged: Judged) -> None:
    model = load_local(FOLDER)
    logs = LocalSequence(model, len(ours())).feed(ours())[-1].double().log_softmax(-1)
    tokenizer = Tokenizer.of(FOLDER)
    given = listed({tokenizer.piece(int(i)): float(logs[i]) for i in logs.topk(5).indices})
    assert judged(endpoint_facts(server(answers(ours(), len(ours()), given)), FOLDER))[1]["endpoint-answer"].outcome == "pass"
    assert judged(endpoint_facts(server(answers(ours(), len(ours()))), FOLDER))[1]["endpoint-answer"].outcome == "skipped"


def test_a_server_that_counts_no_tokens_is_not_cleared(server: Callable[[dict[str, Any]], str], judged: Judged) -> None:
    silent = answers(None, 0, listed({"x": -0.1}))
    del silent["/v1/chat/completions"]["usage"]
    assert judged(endpoint_facts(server(silent), FOLDER))[1]["endpoint-answer"].outcome == "skipped"


def text(logprobs: dict[str, float], cached: int | None) -> dict[str, Any]:
    """An answer to a prompt of token ids."""
    details = None if cached is None else {"cached_tokens": cached}
    choice = {"text": "x", "logprobs": {"tokens": [next(iter(logprobs))], "top_logprobs": [logprobs]}}
    return {"choices": [choice], "usage": {"prompt_tokens": 64, "prompt_tokens_details": details}}


def test_a_cache_that_changes_an_answer_is_found(server: Callable[[dict[str, Any]], str], judged: Judged) -> None:
    """The first answer is that to the long prompt."""
    computed = {"a": -0.01, "b": -5.0}
    for kept, cached, outcome in (({"b": -0.01, "a": -5.0}, 48, "fail"), (computed, 48, "pass"), (computed, 0, "skipped")):
        asked = answers(ours(), len(ours())) | {"/v1/completions": [text(computed, 0), text(computed, 0), text(kept, cached)]}
        facts = list(endpoint_facts(server(asked), FOLDER))
        assert dict(facts)[REUSED]["cached"] == cached
        found, checks = judged(facts)
        assert checks["prefix-cache"].outcome == outcome
        assert ("garbled.prefix-cache" in {one.id for one in found.findings}) == (outcome == "fail")


def test_an_answer_is_compared_token_by_token(server: Callable[[dict[str, Any]], str]) -> None:
    """The first two tokens are those of our own forward pass; the third is one that it finds unlikely there."""
    model, tokenizer, ids = load_local(FOLDER), Tokenizer.of(FOLDER), ours()
    content = []
    for _ in range(2):
        logs = LocalSequence(model, len(ids)).feed(ids)[-1].double().log_softmax(-1)
        best = int(logs.argmax())
        content += listed({tokenizer.piece(best): float(logs[best])})["content"]
        ids = [*ids, best]
    content += listed({"<|im_start|>": -0.01})["content"]
    own = dict(endpoint_facts(server(answers(ours(), len(ours()), {"content": content})), FOLDER))[ANSWER]
    assert (own["at"], own["tokens"], own["same"]) == (2, 3, False)
    assert own["kl"] > 1


def test_a_server_that_is_none_or_refuses_is_told_so(server: Callable[[dict[str, Any]], str]) -> None:
    with pytest.raises(Unreachable):
        dict(endpoint_facts("http://127.0.0.1:9", FOLDER))
    with pytest.raises(BadAnswer, match="404"):
        dict(endpoint_facts(server({"/v1/models": {"data": [{"id": "m"}]}}), FOLDER))
