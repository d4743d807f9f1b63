"""What the scheduler decides is seen from outside: in the answer's usage, in spans, steps and metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from runtime.launcher import ServerProcess

Rows = Callable[..., list[dict[str, Any]]]
BLOCK = 16


def metric(server: ServerProcess, name: str) -> float:
    """Summed over the ranks."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{"))


def test_a_prompt_asked_again_is_found_on_the_rank_that_has_it(
    server: ServerProcess, client: openai.OpenAI, rows: Rows, requests_of: Any
) -> None:
    asked = requests_of.chat("Repeat these words after me: red blue green red blue green blue blue red green red red blue.")
    hits, queries = metric(server, "prefix_cache_hits_total"), metric(server, "prefix_cache_queries_total")
    first, second = (client.chat.completions.create(**asked) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content
    assert second.usage is not None and second.usage.prompt_tokens_details is not None
    prompt, cached = second.usage.prompt_tokens, second.usage.prompt_tokens_details.cached_tokens
    assert cached == (prompt - 1) // BLOCK * BLOCK > 0
    assert metric(server, "prefix_cache_hits_total") - hits >= cached
    assert metric(server, "prefix_cache_queries_total") - queries == 2 * prompt
    traces = [answer.id.removeprefix("chatcmpl-") for answer in (first, second)]
    both = "', '".join(traces)
    roots = rows(f"SELECT * FROM span WHERE parent_id IS NULL AND trace_id IN ('{both}')", lambda found: len(found) == 2)
    one, two = (next(json.loads(s["attrs"]) for s in roots if s["trace_id"] == trace) for trace in traces)
    assert one["moe.rank"] == two["moe.rank"]
    assert (two["moe.route_cached_tokens"], two["moe.cached_tokens"]) == (cached, cached)
    (seen,) = rows(f"SELECT cached_tokens, priority, preemptions FROM request WHERE trace_id = '{traces[1]}'")
    assert seen == {"cached_tokens": cached, "priority": 0, "preemptions": 0}
    (prefill,) = rows(f"SELECT * FROM span WHERE name = 'prefill' AND trace_id = '{traces[1]}'")
    attributes = json.loads(prefill["attrs"])
    assert (attributes["moe.tokens"], attributes["moe.cached_tokens"]) == (prompt - cached, cached)
    steps = f"SELECT * FROM step WHERE step = {attributes['moe.step']} AND rank = {two['moe.rank']}"
    (step,) = rows(steps)
    assert (step["cached_tokens"], step["prefill_tokens"], step["long_tokens"]) == (cached, prompt - cached, 0)
    assert step["kv_kept"] >= 0


def test_a_picture_seen_before_is_not_encoded_again(client: openai.OpenAI, rows: Rows, requests_of: Any) -> None:
    words = "Look closely at the picture before you answer this question about it: what is in the picture?"
    asked = requests_of.about_picture(words)
    first, second = (client.chat.completions.create(**asked) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content
    trace = second.id.removeprefix("chatcmpl-")
    spans = rows(f"SELECT name FROM span WHERE trace_id = '{trace}'", lambda found: "request" in {s["name"] for s in found})
    assert "prefill" in {s["name"] for s in spans} and "image.encode" not in {s["name"] for s in spans}


def test_a_priority_is_recorded_and_a_wrong_one_refused(post: Callable[..., httpx.Response], rows: Rows, requests_of: Any) -> None:
    answer = post({**requests_of.chat("What is 2 + 2?"), "priority": -3})
    trace = answer.json()["id"].removeprefix("chatcmpl-")
    (root,) = rows(f"SELECT * FROM span WHERE parent_id IS NULL AND trace_id = '{trace}'")
    assert json.loads(root["attrs"])["moe.priority"] == -3
    refused = post({**requests_of.chat("hi"), "priority": 99})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "priority"


@pytest.mark.parametrize("body", ['"high"', "1.5"])
def test_a_priority_is_a_whole_number(post: Callable[..., httpx.Response], body: str, requests_of: Any) -> None:
    assert post({**requests_of.chat("hi"), "priority": json.loads(body)}).status_code == 400
