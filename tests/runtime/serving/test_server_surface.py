"""The rest of the OpenAI surface: several choices, completions, formats, biases, token endpoints, ids, timeouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

from runtime.launcher import ServerProcess, start_server
from runtime.shipped import shapes_moe

QUESTION = "What is 2 + 3?"


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoTokenizer.from_pretrained(shapes_moe())


def test_choices_of_one_request(client: openai.OpenAI, requests_of: Any) -> None:
    alone = client.chat.completions.create(**requests_of.chat(QUESTION))
    several = client.chat.completions.create(**requests_of.chat(QUESTION, n=3))
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert {choice.message.content for choice in several.choices} == {alone.choices[0].message.content}  # greedy
    assert several.usage is not None and alone.usage is not None
    assert several.usage.prompt_tokens == alone.usage.prompt_tokens
    assert several.usage.completion_tokens == 3 * alone.usage.completion_tokens


def test_sampled_choices_differ_and_repeat_with_their_seed(client: openai.OpenAI, requests_of: Any) -> None:
    asked = requests_of.chat(QUESTION, n=4, temperature=1.8, seed=7, max_tokens=24) | {"extra_body": {"ignore_eos": True}}
    first, second = ([c.message.content for c in client.chat.completions.create(**asked).choices] for _ in range(2))
    assert first == second and len(set(first)) > 1


def test_streamed_choices_are_those_of_the_whole_answer(client: openai.OpenAI, requests_of: Any) -> None:
    asked = requests_of.chat(QUESTION, n=2, temperature=1.5, seed=3)
    whole = [choice.message.content for choice in client.chat.completions.create(**asked).choices]
    texts, finished = ["", ""], {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                finished[choice.index] = choice.finish_reason
    assert texts == whole and set(finished) == {0, 1}


def test_every_choice_is_a_request_of_its_own_in_the_store(client: openai.OpenAI, requests_of: Any, rows: Callable[..., Any]) -> None:
    raw = client.chat.completions.with_raw_response.create(**requests_of.chat("Who are you?", n=2))
    first = raw.headers["x-trace-id"]
    found = rows(
        "SELECT trace_id, attrs->>'moe.choice' AS choice, attrs->>'moe.first_choice' AS first, status FROM span WHERE name = 'request' "
        f"AND (trace_id = '{first}' OR attrs->>'moe.first_choice' = '{first}') ORDER BY choice",
        lambda found: len(found) == 2,
    )
    assert [(row["choice"], row["first"], row["status"]) for row in found] == [("0", None, "ok"), ("1", first, "ok")]


def test_completions_of_text_and_of_token_ids(client: openai.OpenAI, requests_of: Any, reference: Any) -> None:
    rendered = reference.apply_chat_template([{"role": "user", "content": QUESTION}], tokenize=False, add_generation_prompt=True)
    tokens = reference(rendered, add_special_tokens=False)["input_ids"]
    chat = client.chat.completions.create(**requests_of.chat(QUESTION)).choices[0].message.content
    common: dict[str, Any] = {"model": "shapes-moe", "temperature": 0, "max_tokens": 40}
    for prompt in (rendered, tokens):
        answer = client.completions.create(prompt=prompt, **common)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (chat, "stop")
        assert answer.usage is not None and answer.usage.prompt_tokens == len(tokens)
    several = client.completions.create(prompt=[rendered, "Who"], **common)
    assert [choice.index for choice in several.choices] == [0, 1] and several.choices[0].text == chat
    stream = client.completions.create(prompt=rendered, stream=True, **common)
    assert "".join(chunk.choices[0].text for chunk in stream) == chat


def test_completion_logprobs_line_up_with_the_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="shapes-moe", prompt="The colour", max_tokens=6, temperature=0, logprobs=2)
    found = answer.choices[0].logprobs
    assert found is not None and found.tokens and found.text_offset and found.token_logprobs and found.top_logprobs
    for token, offset, logprob, top in zip(found.tokens, found.text_offset, found.token_logprobs, found.top_logprobs, strict=True):
        assert answer.choices[0].text[offset:].startswith(token) or not answer.choices[0].text[offset:]
        assert max(top.values()) == pytest.approx(logprob)


SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_an_answer_follows_its_schema(client: openai.OpenAI, requests_of: Any, temperature: float) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
    asked = requests_of.about_picture("What is this?", response_format=wanted, max_tokens=120) | {"temperature": temperature}
    answer = client.chat.completions.create(**asked).choices[0]
    assert answer.finish_reason == "stop"
    document = json.loads(answer.message.content or "")
    assert set(document) == {"colour", "count"} and document["colour"] in ("red", "blue") and document["count"] in range(10)


def test_an_answer_goes_on_to_its_least_length_as_in_transformers(client: openai.OpenAI, requests_of: Any, reference: Any) -> None:
    rendered = reference.apply_chat_template([{"role": "user", "content": QUESTION}], tokenize=False, add_generation_prompt=True)
    tokens = reference(rendered, add_special_tokens=False)["input_ids"]
    model = AutoModelForImageTextToText.from_pretrained(shapes_moe(), dtype=torch.float32).eval()
    short = client.chat.completions.create(**requests_of.chat(QUESTION))
    assert short.usage is not None
    least = short.usage.completion_tokens + 6
    expected = model.generate(torch.tensor([tokens]), min_new_tokens=least, max_new_tokens=least, do_sample=False)[0, len(tokens) :]
    asked = requests_of.chat(QUESTION, max_tokens=least) | {"extra_body": {"min_tokens": least}}
    found = client.chat.completions.create(**asked, stop=["."])  # a stop string does not end it before either
    assert found.choices[0].message.content == reference.decode(expected, skip_special_tokens=True)
    assert found.usage is not None and found.usage.completion_tokens == least
    with pytest.raises(openai.BadRequestError, match="min_tokens"):
        client.chat.completions.create(**requests_of.chat(QUESTION, max_tokens=4) | {"extra_body": {"min_tokens": 5}})


@pytest.mark.parametrize("field", ["min_tokens", "top_k"])
def test_a_number_that_no_message_between_processes_holds_is_refused(client: openai.OpenAI, requests_of: Any, field: str) -> None:
    settings = {name: value for name, value in requests_of.chat(QUESTION).items() if name != "max_tokens"}
    with pytest.raises(openai.BadRequestError, match=field):
        client.chat.completions.create(**settings | {"extra_body": {field: 10**23}})


def test_a_bias_forbids_and_forces_tokens(client: openai.OpenAI, requests_of: Any, reference: Any) -> None:
    free = client.chat.completions.create(**requests_of.chat(QUESTION)).choices[0].message.content or ""
    first = reference(free, add_special_tokens=False)["input_ids"][0]
    banned = client.chat.completions.create(**requests_of.chat(QUESTION, logit_bias={str(first): -100})).choices[0].message.content or ""
    assert first not in reference(banned, add_special_tokens=False)["input_ids"]
    forced = requests_of.chat(QUESTION, logit_bias={str(first): 100}, max_tokens=5)
    assert client.chat.completions.create(**forced).choices[0].message.content == reference.decode([first] * 5)


def test_a_stop_token_id_ends_the_answer(client: openai.OpenAI, requests_of: Any, reference: Any) -> None:
    free = client.chat.completions.create(**requests_of.chat(QUESTION)).choices[0].message.content or ""
    tokens = reference(free, add_special_tokens=False)["input_ids"]
    asked = requests_of.chat(QUESTION) | {"extra_body": {"stop_token_ids": [tokens[2]]}}
    answer = client.chat.completions.create(**asked).choices[0]
    assert (answer.message.content, answer.finish_reason) == (reference.decode(tokens[:2]), "stop")


def test_tokenize_and_detokenize_agree_with_transformers(server: ServerProcess, reference: Any) -> None:
    text = "Where is the red circle? 12"
    answer = httpx.post(f"{server.url}/tokenize", json={"prompt": text}).json()
    assert answer["tokens"] == reference(text)["input_ids"] and answer["count"] == len(answer["tokens"])
    messages = [{"role": "user", "content": text}]
    chat = httpx.post(f"{server.url}/tokenize", json={"messages": messages, "return_token_strs": True}).json()
    assert chat["tokens"] == reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert "".join(chat["token_strs"]) == reference.decode(chat["tokens"])
    back = httpx.post(f"{server.url}/detokenize", json={"tokens": chat["tokens"]}).json()
    assert back["prompt"] == reference.decode(chat["tokens"])
    assert httpx.post(f"{server.url}/detokenize", json={"tokens": [-1]}).status_code == 400
    assert httpx.post(f"{server.url}/tokenize", json={}).status_code == 400


def test_the_clients_request_id_comes_back(server: ServerProcess, requests_of: Any) -> None:
    url = f"{server.url}/v1/chat/completions"
    body = requests_of.chat(QUESTION)
    assert httpx.post(url, json=body, headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    ours = httpx.post(url, json=body, headers={"X-Request-Id": "x" * 500}).headers
    assert ours["x-request-id"] == ours["x-trace-id"]


def test_a_client_may_choose_the_replica(server: ServerProcess, requests_of: Any, rows: Any) -> None:
    """X-Data-Parallel-Rank, as vLLM has it."""
    url, body = f"{server.url}/v1/chat/completions", requests_of.chat(QUESTION, max_tokens=1)
    chosen = [httpx.post(url, json=body, headers={"X-Data-Parallel-Rank": "1"}) for _ in range(4)]
    asked = [answer.raise_for_status().headers["x-trace-id"] for answer in chosen]
    sql = f"SELECT rank FROM request WHERE trace_id IN ({', '.join(repr(one) for one in asked)})"
    assert [row["rank"] for row in rows(sql, lambda found: len(found) == 4)] == [1] * 4
    for given in ("2", "-1", "one", "١", ""):
        refused = httpx.post(url, json=body, headers={"X-Data-Parallel-Rank": given.encode()})
        assert refused.status_code == 400 and "replicas 0 to 1" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "empty"),
        ({"prompt": [1, "a"]}, "token ids"),
        ({"prompt": [99_999_999]}, "99999999"),
        ({"echo": True}, "echo"),
        ({"best_of": 4}, "best_of"),
        ({"logprobs": 50}, "logprobs"),
    ],
)
def test_bad_completions_are_refused_by_name(server: ServerProcess, change: dict[str, Any], word: str) -> None:
    response = httpx.post(f"{server.url}/v1/completions", json={"model": "shapes-moe", "prompt": "a", **change})
    assert response.status_code == 400 and word in response.json()["error"]["message"]


def test_a_request_that_takes_too_long_is_given_up(tmp_path: Any, requests_of: Any) -> None:
    with start_server(requests_of.config(tmp_path, 1, request_timeout=0.3)) as server:
        body = {**requests_of.chat("Count up from 1.", max_tokens=900), "ignore_eos": True}
        late = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
        assert late.status_code == 504 and late.json()["error"]["code"] == "request_timeout"
        assert "0.3 s" in late.json()["error"]["message"]
        assert httpx.post(f"{server.url}/v1/chat/completions", json=requests_of.chat(QUESTION, max_tokens=1), timeout=60).status_code == 200
