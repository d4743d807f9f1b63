"""A server of another make, from outside: a loopback server that answers as vLLM does, and tokenises one prompt in its own way."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from playbooks.document import CheckRecord, Diagnosis
from playbooks.garbled_output.examine.endpoint import MOST_BYTES, endpoint_facts
from playbooks.garbled_output.examine.sent import rendered
from playbooks.garbled_output.facts import ANSWER, SENT
from runtime.local import LocalSequence, load_local
from runtime.server.tokenizer import Tokenizer
from runtime.shipped import shapes_moe
from traces.errors import UsageError

FOLDER = Path(shapes_moe())
Judged = Callable[[Any], tuple[Diagnosis, dict[str, CheckRecord]]]
START = 1000  # <|im_start|>, the first token of the shipped template


@pytest.fixture
def server() -> Iterator[Callable[[dict[str, Any]], str]]:
    """server(answers by path) -> its URL; a path without an answer is 404."""
    made: list[ThreadingHTTPServer] = []

    def start(answers: dict[str, Any]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self._reply()

            def _reply(self) -> None:
                body = json.dumps(answers.get(self.path, {})).encode()
                self.send_response(200 if self.path in answers else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *parts: Any) -> None:
                """Nothing on stderr."""

        made.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=made[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{made[-1].server_port}"

    yield start
    for one in made:
        one.shutdown()
        one.server_close()


def ours() -> list[int]:
    return Tokenizer.of(FOLDER).encode(rendered(FOLDER))


def answers(tokens: list[int] | None, count: int, logprobs: Any = None) -> dict[str, Any]:
    chat = {"choices": [{"logprobs": logprobs, "message": {"content": "x"}}], "usage": {"prompt_tokens": count}}
    found: dict[str, Any] = {"/v1/models": {"data": [{"id": "m"}]}, "/v1/chat/completions": chat}
    return found | ({} if tokens is None else {"/tokenize": {"tokens": tokens}})


def listed(logprobs: dict[str, float | None]) -> dict[str, Any]:
    return {"content": [{"top_logprobs": [{"token": token, "logprob": value} for token, value in logprobs.items()]}]}


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
    wrong = {"content": [{"top_logprobs": [{"token": piece, "logprob": -0.01} for piece in ("<|im_end|>",)]}]}
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


def test_an_endless_answer_is_not_read_to_its_end(server: Callable[[dict[str, Any]], str]) -> None:
    with pytest.raises(UsageError, match="lists no model"):
        dict(endpoint_facts(server({"/v1/models": {"data": [{"id": "m"}], "more": "x" * MOST_BYTES}}), FOLDER))


def test_a_server_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="lists no model"):
        dict(endpoint_facts("http://127.0.0.1:9", FOLDER))
