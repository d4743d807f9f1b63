"""The client against a real HTTP server that streams chat completions, well and badly."""

import asyncio
import base64
import io
import json
import socket
import time

import pytest
from PIL import Image
from starlette.responses import JSONResponse, PlainTextResponse

from probes.traffic.client import base_url, retry_after
from probes.traffic.generator import run_traffic
from probes.traffic.plan import TrafficPlan
from traces import schema
from traces.errors import Unreachable, UsageError


@pytest.fixture
def server(chat_server):
    return chat_server


def go(server, recorder=None, on_progress=None, **plan):
    plan = {"concurrency": 2, "requests": 4, "timeout": 20, "keep_answers": True} | plan
    return asyncio.run(run_traffic(TrafficPlan(**plan), server.url, recorder, on_progress))


def test_a_good_answer_is_measured(server):
    server.gap = 0.005
    seen = []
    result = go(server, on_progress=lambda *now: seen.append(now))
    assert (result.model, result.ended, result.summary.ok, result.summary.errors) == ("shapes-moe", "done", 4, 0)
    for record in result.records:
        assert (record.status, record.answer, record.finish) == ("ok", "The star is red.", "stop")
        assert (record.input_tokens, record.output_tokens, record.counted_by) == (11, 9, "usage")
        assert len(record.gaps) == len(server.words) - 1
        assert 5_000_000 <= record.ttft < record.e2e  # the server waits 5 ms after the role, which is no text
        assert record.tpot == sum(record.gaps) / 8
        assert record.ttft + sum(record.gaps) <= record.e2e
    assert seen == [(done, 4, done, 0) for done in (1, 2, 3, 4)]
    assert result.summary.output_tokens == 36


def test_a_server_without_usage_is_counted_by_pieces(server):
    server.answer = lambda number: [*map(server.chunk, server.words), server.chunk(finish="stop")]
    result = go(server)
    assert [(record.output_tokens, record.counted_by, record.input_tokens) for record in result.records] == [(4, "chunks", None)] * 4


def test_events_cut_anywhere_by_the_network(server):
    text = b": keep-alive\n\nevent: message\n" + b"".join(server.whole_answer())
    server.answer = lambda number: [text[at : at + 7 + number] for at in range(0, len(text), 7 + number)]
    result = go(server)
    assert {record.answer for record in result.records} == {"The star is red."}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda server: [server.chunk("The "), b"data: {not json\n\n"], "malformed chunk"),
        (lambda server: [server.chunk("The "), b'data: {"choices": "no list"}\n\n'], "malformed chunk"),
        (lambda server: [server.chunk("The "), b'data: {"error": {"message": "out of memory"}}\n\n'], "out of memory"),
        (lambda server: [server.chunk("The "), RuntimeError("breaks off")], "connection lost after 1 pieces"),
        (lambda server: [server.chunk("The "), server.chunk("star ")], "stream ended early, after 2 pieces"),
        (lambda server: [b"data: [DONE]\n\n"], "stream ended early, after 0 pieces"),
        (lambda server: PlainTextResponse("rank 3 died", 500), "HTTP 500: rank 3 died"),
        (lambda server: JSONResponse({"error": {"message": "too long"}}, 400), "too long"),
    ],
)
def test_a_bad_answer_is_an_error_with_its_reason(server, answer, reason):
    server.answer = lambda number: answer(server) if number == 1 else server.whole_answer()
    result = go(server, concurrency=1)
    assert [record.status for record in result.records] == ["ok", "error", "ok", "ok"]
    assert reason in result.records[1].reason
    assert (result.summary.ok, result.summary.errors) == (3, 1)
    assert result.records[1].exact is None
    assert list(result.summary.reasons) == [result.records[1].reason]


def test_a_silent_server_runs_into_the_timeout(server):
    server.gap = 30
    result = go(server, requests=1, concurrency=1, timeout=0.3)
    assert result.records[0].status == "error"
    assert "timeout after 0.3 s" in result.records[0].reason


def test_what_happens_after_done_does_not_matter(server):
    server.answer = lambda number: [*server.whole_answer(), RuntimeError("after the end")]
    assert go(server).summary.ok == 4


def test_a_busy_server_is_waited_for_as_long_as_it_says_and_counted(server):
    arrivals = []

    def answer(number):
        arrivals.append(time.monotonic())
        return PlainTextResponse("busy", 429, headers={"retry-after": "0.4"}) if number in (0, 1) else server.whole_answer()

    server.answer = answer
    result = go(server, requests=1, concurrency=1)
    (record,) = result.records
    assert (record.status, record.busy, result.summary.busy) == ("ok", 2, 2)
    assert arrivals[2] - arrivals[0] >= 0.8
    assert record.e2e >= 800_000_000 and record.ttft >= 800_000_000  # the person waited all that time


def test_a_server_that_stays_busy_ends_in_a_timeout(server):
    server.answer = lambda number: PlainTextResponse("busy", 429, headers={"retry-after": "0.05"})
    result = go(server, requests=1, concurrency=1, timeout=0.3)
    assert result.records[0].status == "error" and result.records[0].busy >= 2


def test_no_server_is_unreachable_with_a_hint():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unreachable) as caught:
        asyncio.run(run_traffic(TrafficPlan(concurrency=1, requests=1), f"http://127.0.0.1:{port}"))
    assert str(port) in caught.value.message and "workbench serve" in caught.value.hint


def test_a_server_that_goes_away_ends_the_run(server):
    def leave(done, total, ok, errors):
        if done == 5:
            server.__exit__()

    result = go(server, concurrency=1, requests=10_000, on_progress=leave)
    assert result.ended == "unreachable"
    assert result.summary.ok >= 5 and result.summary.count < 60
    assert any("cannot connect" in reason for reason in result.summary.reasons)


def test_cancelling_keeps_what_was_measured(server, rows):
    server.answer = lambda number: server.whole_answer() if number < 6 else [server.chunk("The "), *[b": wait\n\n"] * 1000]
    server.gap = 0.01

    async def interrupted():
        enough = asyncio.Event()
        plan = TrafficPlan(concurrency=3, requests=1000, phase="before")
        task = asyncio.create_task(run_traffic(plan, server.url, rows, lambda done, *more: enough.set() if done == 6 else None))
        await enough.wait()
        task.cancel()
        return await task

    result = asyncio.run(interrupted())
    assert result.ended == "cancelled"
    assert result.summary.ok == 6 and 1 <= result.summary.cancelled <= 3
    statuses = [row["status"] for row in rows.of(schema.SPAN)]
    assert statuses.count("ok") == 6 and statuses.count("cancelled") == result.summary.cancelled


def test_each_request_is_a_span_that_the_server_can_join(server, rows):
    go(server, rows, phase="during", image_share=0.5, requests=12)
    spans = rows.of(schema.SPAN)
    assert {(row["name"], row["kind"], row["status"], row["parent_id"]) for row in spans} == {("client.request", "client", "ok", None)}
    assert {f"00-{row['trace_id']}-{row['span_id']}-01" for row in spans} == {headers["traceparent"] for headers in server.headers}
    attrs = [row["attrs"] for row in spans]
    assert {entry["workbench.phase"] for entry in attrs} == {"during"}
    assert {entry["workbench.kind"] for entry in attrs} == {"text", "image"}
    for row in spans:
        assert 0 < row["attrs"]["ttft_ns"] <= row["dur"]
        assert row["attrs"]["output_tokens"] == 9
        assert row["attrs"]["itl_max_ns"] >= row["attrs"]["tpot_ns"] / 3
    (window,) = rows.of(schema.EVENT)
    assert window["kind"] == "traffic" and window["attrs"]["phase"] == "during" and window["attrs"]["ok"] == 12
    assert all(window["ts"] <= row["ts"] and row["ts"] + row["dur"] <= window["ts"] + window["dur"] for row in spans)


def test_poisson_arrivals_do_not_wait_for_answers(server):
    server.gap = 0.25  # an answer takes 2 s, all arrivals 0.3 s
    result = go(server, concurrency=None, rate=100.0, requests=30)
    starts = [record.start for record in sorted(result.records, key=lambda record: record.index)]
    assert result.summary.ok == 30
    assert starts[-1] < min(record.start + record.e2e for record in result.records)  # the last began before the first ended


def test_a_duration_ends_the_sending_and_lets_the_last_ones_finish(server):
    result = go(server, requests=None, duration=0.3)
    assert result.summary.ok == result.summary.count >= 2


def test_answers_are_judged_word_for_word(server):
    def right(number):
        body = server.bodies[number]
        (text,) = [part["text"] for part in body["messages"][-1]["content"] if part["type"] == "text"]
        return [server.chunk(answers[text]), server.chunk(finish="stop")] if number % 2 else server.whole_answer()

    from probes.traffic.prompts import Prompts

    plan = TrafficPlan(concurrency=1, requests=8, image_share=1.0, seed=3)
    prompts = [Prompts(plan, "shapes-moe")]
    sequence = [prompts[0].next() for _ in range(8)]
    answers = {json.loads(prompt.body)["messages"][0]["content"][1]["text"]: prompt.expected for prompt in sequence}
    server.answer = right
    result = go(server, concurrency=1, requests=8, image_share=1.0, seed=3)
    assert result.summary.exact.judged == 8
    assert result.summary.exact.right >= 4
    assert [record.exact for record in result.records][1::2] == [True] * 4


def test_bodies_are_what_the_api_defines(server):
    go(server, requests=20, image_share=0.5)
    pictures = 0
    for body in server.bodies:
        assert (body["model"], body["stream"], body["stream_options"], body["temperature"]) == (
            "shapes-moe",
            True,
            {"include_usage": True},
            0,
        )
        (message,) = body["messages"]
        if isinstance(message["content"], list):
            image, text = message["content"]
            data = image["image_url"]["url"].removeprefix("data:image/png;base64,")
            assert Image.open(io.BytesIO(base64.b64decode(data))).size == (192, 192)
            assert text["type"] == "text"
            pictures += 1
    assert 0 < pictures < 20


def test_prefill_heavy_is_long_and_asks_for_little(server):
    go(server, mix="prefill-heavy", turns=10, image_share=0.5, requests=10)
    for body in server.bodies:
        assert [message["role"] for message in body["messages"]] == ["user", "assistant"] * 9 + ["user"]
        assert body["max_tokens"] == 4
    assert any(isinstance(body["messages"][0]["content"], list) for body in server.bodies)


def test_the_same_seed_sends_the_same_requests(server):
    bodies = []
    for seed in (1, 1, 2):
        server.bodies.clear()
        go(server, concurrency=1, requests=6, seed=seed)
        bodies.append([json.dumps(body["messages"]) for body in server.bodies])
    assert bodies[0] == bodies[1] != bodies[2]


def test_the_document_is_json_without_the_key(server):
    document = go(server, api_key="sk-secret").document()
    text = json.dumps(document)
    assert document["schema"] == "workbench.traffic.v1" and "sk-secret" not in text
    assert server.headers[-1]["authorization"] == "Bearer sk-secret"
    assert document["summary"]["e2e"]["p99"]["value"] is None and "3000 needed" in document["summary"]["e2e"]["p99"]["reason"]


@pytest.mark.parametrize("given", ["http://h:1", "http://h:1/", "h:1", "http://h:1/v1", "http://h:1/v1/", "http://h:1/v1/chat/completions"])
def test_any_form_of_the_url(given):
    assert base_url(given) == "http://h:1/v1"


def test_a_prefix_is_kept():
    assert base_url("https://gate.example/team/v1") == "https://gate.example/team/v1"
    with pytest.raises(UsageError):
        base_url("ftp://h")


def test_retry_after_in_both_forms():
    assert retry_after("1.5") == 1.5
    assert retry_after(None) is None
    assert retry_after("soon") is None
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@pytest.mark.parametrize(
    "plan",
    [
        {"requests": 1},
        {"requests": 1, "rate": 1.0, "concurrency": 1},
        {"concurrency": 1},
        {"concurrency": 0, "requests": 1},
        {"concurrency": 1, "requests": 1, "mix": "poems"},
        {"concurrency": 1, "requests": 1, "image_share": 1.5},
        {"concurrency": 1, "requests": 1, "replica": -1},
    ],
)
def test_a_plan_that_cannot_be_done_is_refused(plan):
    with pytest.raises(UsageError):
        TrafficPlan(**plan)
