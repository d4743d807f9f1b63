"""The OpenAI surface, through the unmodified `openai` client and raw HTTP."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from runtime.control_client import ControlClient
from runtime.launcher import ServerProcess

QUESTION = "What is 2 + 3?"


def test_models_are_listed_and_an_unknown_one_is_404(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "shapes-moe"
    assert client.models.retrieve("shapes-moe").id == "shapes-moe"
    with pytest.raises(openai.NotFoundError, match="shapes-moe"):
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "hi"}])


def test_text_answer_has_usage_and_is_repeatable(client: openai.OpenAI, requests_of: Any) -> None:
    first, second = (client.chat.completions.create(**requests_of.chat(QUESTION)) for _ in range(2))
    assert first.choices[0].message.content and first.choices[0].message.content == second.choices[0].message.content
    assert first.choices[0].finish_reason == "stop"
    assert first.usage is not None and first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert first.usage.prompt_tokens > 5


def test_stream_gives_the_same_text_and_usage(client: openai.OpenAI, requests_of: Any) -> None:
    whole = client.chat.completions.create(**requests_of.chat(QUESTION))
    chunks = list(client.chat.completions.create(**requests_of.chat(QUESTION), stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert len(chunks) > 4


def test_max_tokens_cuts_with_length(client: openai.OpenAI, requests_of: Any) -> None:
    answer = client.chat.completions.create(**{**requests_of.chat(QUESTION), "max_tokens": None, "max_completion_tokens": 2})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_is_cut_out_even_across_tokens(client: openai.OpenAI, requests_of: Any, stream: bool) -> None:
    full = client.chat.completions.create(**requests_of.chat(QUESTION)).choices[0].message.content or ""
    middle = len(full) // 2
    stop = full[middle - 2 : middle + 2]
    expected = full[: full.find(stop)]
    asked = requests_of.chat(QUESTION, stop=[stop, "never said"], stream=stream)
    answer: Any = client.chat.completions.create(**asked)
    if stream:
        chunks = list(answer)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (expected, "stop")


def test_seed_repeats_a_sampled_answer(client: openai.OpenAI, requests_of: Any) -> None:
    def sampled(seed: int) -> str | None:
        asked = requests_of.chat(QUESTION, temperature=1.8, seed=seed, max_tokens=24) | {"extra_body": {"ignore_eos": True}}
        return client.chat.completions.create(**asked).choices[0].message.content

    assert sampled(5) == sampled(5)
    assert len({sampled(seed) for seed in range(4)}) > 1


def test_logprobs_are_those_of_a_distribution(client: openai.OpenAI, requests_of: Any) -> None:
    answer = client.chat.completions.create(**requests_of.chat(QUESTION, logprobs=True, top_logprobs=5))
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    for token in answer.choices[0].logprobs.content:
        assert token.logprob == max(t.logprob for t in token.top_logprobs)  # greedy
        assert sum(math.exp(t.logprob) for t in token.top_logprobs) <= 1 + 1e-5


def test_picture_takes_nine_tokens_and_changes_the_answer(client: openai.OpenAI, requests_of: Any) -> None:
    """96 x 96 pixels after resizing: 6 x 6 patches of 16, merged 2 x 2."""
    text = "What colour is the circle?"
    seen = client.chat.completions.create(**requests_of.about_picture(text, logprobs=True))
    unseen = client.chat.completions.create(**requests_of.chat(text, logprobs=True))
    assert seen.usage is not None and unseen.usage is not None
    assert seen.usage.prompt_tokens == unseen.usage.prompt_tokens + 9 + 2  # and the two marks around it
    chunks = list(client.chat.completions.create(**requests_of.about_picture(text), stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == seen.choices[0].message.content
    assert seen.choices[0].logprobs.content[0].logprob != unseen.choices[0].logprobs.content[0].logprob  # type: ignore[union-attr,index]


def test_several_pictures_in_one_request(client: openai.OpenAI, requests_of: Any) -> None:
    one = requests_of.about_picture("What is this?")
    content = one["messages"][0]["content"]
    two = {**one, "messages": [{"role": "user", "content": [content[0], *content]}]}
    counts = [client.chat.completions.create(**asked).usage.prompt_tokens for asked in (one, two)]  # type: ignore[union-attr]
    assert counts[1] == counts[0] + 11


REFUSED: list[tuple[Any, int, str, str | None]] = [
    (b"{", 400, "not JSON", None),
    ({"model": "shapes-moe"}, 400, "messages", "messages"),
    ({"model": "shapes-moe", "messages": []}, 400, "empty", "messages"),
    ({"model": "shapes-moe", "messages": "hi"}, 400, "array", "messages"),
    ({"n": 17}, 400, "between 1 and 16", "n"),
    ({"temperature": 3}, 400, "temperature", "temperature"),
    ({"temperature": "hot"}, 400, "float", "temperature"),
    ({"top_p": 0}, 400, "top_p", "top_p"),
    ({"max_tokens": 0}, 400, "max_tokens", "max_tokens"),
    ({"max_tokens": 100_000}, 400, "1024", "max_tokens"),
    ({"tools": [{"type": "function"}]}, 400, "not a function", "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "no place for tools", "tools"),
    ({"tool_choice": "required"}, 400, "auto or none", "tool_choice"),
    ({"response_format": {"type": "xml"}}, 400, "xml", "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}}, 400, "objekt", "response_format"),
    ({"presence_penalty": 2.1}, 400, "presence_penalty", "presence_penalty"),
    ({"repetition_penalty": 0}, 400, "repetition_penalty", "repetition_penalty"),
    ({"min_p": 1.5}, 400, "min_p", "min_p"),
    ({"logit_bias": {"x": 1}}, 400, "token id", "logit_bias"),
    ({"logit_bias": {"5": 101}}, 400, "-100 and 100", "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, 400, "token id", "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(2000)}}, 400, "token id", "logit_bias"),
    ({"stop_token_ids": [10_000_000]}, 400, "10000000", "stop_token_ids"),
    ({"messages": [{"role": "user", "content": "hi"}] * 10_000}, 400, "4096", "messages"),
    ({"stop": [""]}, 400, "stop", "stop"),
    ({"messages": [{"role": "user", "content": "word " * 2000}]}, 400, "1023", "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 400, "audio", "messages[0].content[0]"),
]


@pytest.mark.parametrize(("change", "status", "word", "param"), REFUSED)
def test_bad_requests_are_refused_by_name(
    post: Callable[..., httpx.Response], requests_of: Any, change: Any, status: int, word: str, param: str | None
) -> None:
    body = change if isinstance(change, bytes) or "model" in change else {**requests_of.chat(QUESTION), **change}
    response = post(body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert word in error["message"]
    assert error["type"] == "invalid_request_error"


def test_unknown_fields_and_nulls_are_ignored(post: Callable[..., httpx.Response], requests_of: Any) -> None:
    nulls = dict.fromkeys(("stop", "n", "stream_options", "top_p", "seed", "tools", "logprobs"))
    body = {**requests_of.chat(QUESTION), "metadata": {"a": 1}, "user": "me", **nulls}
    assert post(body).status_code == 200


PICTURES: list[tuple[str | None, bytes | None, int, str]] = [
    ("https://example.org/a.png", None, 400, "does not fetch"),
    ("file:///etc/hostname", None, 400, "data URI"),
    ("data:image/png;base64,@@@@", None, 400, "base64"),
    (None, b"no picture at all", 400, "PNG"),
    ("data:image/png;base64," + "A" * (28 << 20), None, 413, "max_image_bytes"),
]


@pytest.mark.parametrize(("url", "data", "status", "word"), PICTURES)
def test_bad_pictures_are_refused(
    post: Callable[..., httpx.Response], requests_of: Any, url: str | None, data: bytes | None, status: int, word: str
) -> None:
    response = post(requests_of.about_picture("What is this?", data=data, url=url))
    assert response.status_code == status
    assert word in response.json()["error"]["message"]


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded(post: Callable[..., httpx.Response], requests_of: Any) -> None:
    data = bytearray(requests_of.picture(16))
    data[16:24] = (60_000).to_bytes(4, "big") * 2  # width and height in the PNG header; the checksum is looked at only when decoding
    import zlib

    data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
    response = post(requests_of.about_picture("What is this?", data=bytes(data)))
    assert response.status_code == 413
    assert "max_image_pixels" in response.json()["error"]["message"]


def test_unknown_paths_and_methods_answer_in_the_same_form(server: ServerProcess) -> None:
    assert httpx.get(f"{server.url}/v1/nothing").json()["error"]["code"] == "not_found"
    assert httpx.get(f"{server.url}/v1/chat/completions").status_code == 405


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_body_that_is_declared_as_something_else_is_refused(server: ServerProcess, requests_of: Any, kind: str) -> None:
    body = json.dumps(requests_of.chat(QUESTION)).encode()
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        response = httpx.post(server.url + path, content=body, headers={"content-type": kind})
        assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
    told = {"content-type": "application/json; charset=utf-8"}
    assert httpx.post(f"{server.url}/v1/chat/completions", content=body, headers=told, timeout=60).status_code == 200


def test_a_body_of_invalid_utf8_is_refused(post: Callable[..., httpx.Response], requests_of: Any) -> None:
    response = post(json.dumps(requests_of.chat("@")).encode().replace(b"@", b"\xff\xfe"))
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_declared_length_above_the_limit_is_refused_before_it_is_read(server: ServerProcess) -> None:
    """Only the header is sent: an answer means that nothing waited for the body."""
    host, port = server.url.removeprefix("http://").split(":")
    secret = (server.run.path / "control.token").read_text()
    for path, token in (("/tokenize", ""), ("/v1/chat/completions", ""), ("/control/detail", secret)):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Length: {1 << 40}\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_client_that_leaves_frees_its_sequence(server: ServerProcess, control: ControlClient, requests_of: Any) -> None:
    body = {**requests_of.chat("Count up from 1.", max_tokens=900), "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
        requests_of.wait_for_text(response)
        assert sum(load["running"] for load in control.state()["loads"]) == 1
    deadline = time.monotonic() + 20
    while any(load["running"] or load["kv_used"] for load in control.state()["loads"]):
        assert time.monotonic() < deadline, "the sequence is still there"
        time.sleep(0.05)
    assert all(load["outstanding"] == 0 for load in control.state()["loads"])


def test_health_and_metrics_tell_the_same_counts(server: ServerProcess, client: openai.OpenAI, requests_of: Any) -> None:
    def totals() -> dict[str, float]:
        found: dict[str, float] = {}
        for line in httpx.get(f"{server.url}/metrics").text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.partition("{")[0], None, line.rpartition(" ")[2]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    before = totals()
    usage = client.chat.completions.create(**requests_of.chat(QUESTION)).usage
    after = totals()
    assert usage is not None
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == usage.prompt_tokens
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == usage.completion_tokens
    for name in ("prefill", "decode", "inference"):  # each once a request, as vLLM counts them
        assert after[f"vllm:request_{name}_time_seconds_count"] - before[f"vllm:request_{name}_time_seconds_count"] == 1
    assert after["vllm:inter_token_latency_seconds_count"] - before["vllm:inter_token_latency_seconds_count"] == usage.completion_tokens - 1
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert after[f"vllm:{name}_seconds_count"] - before[f"vllm:{name}_seconds_count"] == 1
    assert {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} <= set(after)
    health = httpx.get(f"{server.url}/health")
    assert (health.status_code, health.json()["status"]) == (200, "ok")
