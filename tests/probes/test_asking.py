"""Servers of other kinds, told by name: a loopback server answers everything alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from probes.asking import MOST_BYTES, Asker
from traces.errors import BadAnswer, Unreachable

MODELS = b'{"data": [{"id": "m", "max_model_len": 512}]}'


@pytest.fixture
def server(http_server: Callable[..., str]) -> Callable[..., str]:
    """server(to GET, to POST, status) -> its URL."""

    def start(listed: bytes = MODELS, answer: Any = None, status: int = 200) -> str:
        return http_server(lambda method, path: (status, listed if method == "GET" else json.dumps(answer).encode()))

    return start


@pytest.mark.parametrize(
    ("listed", "status", "words"),
    [
        (b"{}", 404, "answered 404"),
        (b"<html>", 200, "not answered as an OpenAI server does"),
        (b"[]", 200, "not answered as an OpenAI server does"),
        (b'{"data": []}', 200, "lists no model"),
        (b'{"data": [{"id": "m"}], "more": "' + b"x" * MOST_BYTES + b'"}', 200, "more than 4 MiB"),
        (b"[" * 100_000, 200, "not answered as an OpenAI server does"),
    ],
)
def test_servers_of_other_kinds_are_told_by_name(server: Callable[..., str], listed: bytes, status: int, words: str) -> None:
    with pytest.raises(BadAnswer, match=words):
        Asker(server(listed, status=status))


def test_a_model_that_is_not_served_and_a_server_that_is_none(server: Callable[..., str]) -> None:
    with pytest.raises(BadAnswer, match="no model 'other': it lists m"):
        Asker(server(), "other")
    with pytest.raises(Unreachable):
        Asker("http://127.0.0.1:9")


@pytest.mark.parametrize("answer", [{"choices": [], "usage": {"prompt_tokens": 1}}, {"choices": [{}]}, {"error": "no"}])
def test_an_answer_without_a_message_is_none(server: Callable[..., str], answer: Any) -> None:
    with Asker(server(answer=answer)) as asker, pytest.raises(BadAnswer):
        asker.chat("Hello.", 1)


def test_what_has_no_finite_number_counts_for_nothing(server: Callable[..., str]) -> None:
    """As Python's json writes it; the likeliest token first, in whatever order it was told."""
    tops = [{"token": "b", "logprob": -2.0}, {"token": "a", "logprob": -0.5}, {"token": "never", "logprob": -float("inf")}, {"token": "?"}]
    content = [{"token": "a", "top_logprobs": tops}]
    with Asker(server(answer={"choices": [{"message": {"content": "a"}, "logprobs": {"content": content}}]})) as asker:
        told = asker.chat("Hello.", 1)
        assert (told.likely, told.gaps, told.prompt_tokens, asker.longest) == (((("a", -0.5), ("b", -2.0)),), (1.5,), None, 512)
        assert asker.tokenize("Hello.") is None
