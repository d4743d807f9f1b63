"""Greedy answers do not depend on the batch nor on the number of ranks, wherever the two likeliest tokens are 1e-3 apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from runtime.launcher import ServerProcess, start_server
from traces.store import open_run

GAP = 1e-3  # log-probabilities differ by as much as logits do
QUESTIONS = ["What is 2 + 3?", "Count up from 4.", "What colour is grass?", "Repeat: red blue", "What is 7 - 5?", "Who are you?"]

Tokens = list[tuple[str, float]]  # token, gap to the second likeliest


def ask(client: openai.OpenAI, asked: dict[str, Any]) -> Tokens:
    asked = {**asked, "max_tokens": 12, "logprobs": True, "top_logprobs": 2, "extra_body": {"ignore_eos": True}}
    logprobs = client.chat.completions.create(**asked).choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    return [(t.token, t.top_logprobs[0].logprob - t.top_logprobs[1].logprob) for t in logprobs.content]


def assert_equal_where_decided(first: Tokens, second: Tokens) -> None:
    """Up to the first close call, after which two answers may rightly differ."""
    for (a, gap_a), (b, gap_b) in zip(first, second, strict=True):
        if min(gap_a, gap_b) < GAP:
            return
        assert a == b


@pytest.fixture(scope="module")
def asked(requests_of: Any) -> list[dict[str, Any]]:
    pictures = [requests_of.about_picture(text) for text in ("What is in the picture?", "What colour is the circle?")]
    return [*(requests_of.chat(text) for text in QUESTIONS), *pictures]


@pytest.fixture(scope="module")
def alone(served: Callable[[int], ServerProcess], requests_of: Any, asked: list[dict[str, Any]]) -> list[Tokens]:
    """One request at a time on two ranks."""
    client = requests_of.client_of(served(2))
    return [ask(client, request) for request in asked]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_at_once_answer_like_one_at_a_time(
    served: Callable[[int], ServerProcess], requests_of: Any, asked: list[dict[str, Any]], alone: list[Tokens], ranks: int
) -> None:
    client = requests_of.client_of(served(ranks))
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda request: ask(client, request), asked))
    for first, second in zip(alone, together, strict=True):
        assert_equal_where_decided(first, second)


def test_small_chunks_blocks_and_preemption_do_not_change_the_answers(
    tmp_path: Path, requests_of: Any, asked: list[dict[str, Any]], alone: list[Tokens]
) -> None:
    """Prompts of about 20 tokens in chunks of 6, pictures cut in the middle, and a cache that cannot hold all sequences at once."""
    config = requests_of.config(tmp_path, 1, max_tokens_per_step=6, max_sequences=4, block_size=4, kv_blocks=16)
    with start_server(config) as server, ThreadPoolExecutor(len(asked)) as pool:
        client = requests_of.client_of(server)
        together = list(pool.map(lambda request: ask(client, request), asked))
        metrics = httpx.get(f"{server.url}/metrics").text
    with open_run(server.run) as store:
        events = [json.loads(row["attrs"]) for row in store.rows("SELECT attrs FROM event WHERE kind = 'preemption'")]
    for first, second in zip(alone, together, strict=True):
        assert_equal_where_decided(first, second)
    preempted = next(line for line in metrics.splitlines() if line.startswith("vllm:num_preemptions_total{"))
    assert sum(len(event["requests"]) for event in events) == float(preempted.rpartition(" ")[2]) >= 1
    assert all(len(event["requests"]) == len(event["needed_by"]) for event in events)


def test_four_ranks_alone_answer_like_two(
    served: Callable[[int], ServerProcess], requests_of: Any, asked: list[dict[str, Any]], alone: list[Tokens]
) -> None:
    client = requests_of.client_of(served(4))
    for request, first in zip(asked, alone, strict=True):
        assert_equal_where_decided(first, ask(client, request))
