"""What a served request leaves in the store: spans that fill it, tokens, steps equal on all ranks, load windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from runtime.control_client import ControlClient

Rows = Callable[..., list[dict[str, Any]]]


def union(intervals: list[tuple[int, int]]) -> int:
    """Length covered by intervals."""
    covered, end = 0, 0
    for start, stop in sorted(intervals):
        covered += max(0, stop - max(start, end))
        end = max(end, stop)
    return covered


@pytest.mark.parametrize("kind", ["text", "image", "stream"])
def test_stages_fill_the_request(client: openai.OpenAI, rows: Rows, requests_of: Any, kind: str) -> None:
    if kind == "image":
        asked = requests_of.about_picture("What is in the picture?") | {"extra_body": {"cache_salt": "never seen before"}}
    else:
        asked = requests_of.chat("What is 2 + 3?")
    if kind == "stream":
        answer_id = next(iter([c.id for c in client.chat.completions.create(**asked, stream=True)]))
    else:
        answer_id = client.chat.completions.create(**asked).id
    trace = answer_id.removeprefix("chatcmpl-")
    spans = rows(f"SELECT * FROM span WHERE trace_id = '{trace}'", lambda found: any(s["parent_id"] is None for s in found))
    (root,) = [s for s in spans if s["parent_id"] is None]
    stages = [s for s in spans if s["parent_id"] == root["span_id"]]
    names = {s["name"] for s in stages}
    assert {"tokenize", "queue", "prefill", "decode", "detokenize", "send"} <= names
    assert ("image.encode" in names) == ("image.preprocess" in names) == (kind == "image")
    end = root["ts"] + root["dur"]
    assert union([(max(s["ts"], root["ts"]), min(s["ts"] + s["dur"], end)) for s in stages]) >= 0.95 * root["dur"]
    (request,) = rows(f"SELECT * FROM request WHERE trace_id = '{trace}'", lambda found: bool(found) and found[0]["ttft"] is not None)
    tokens = rows(f"SELECT * FROM token WHERE trace_id = '{trace}' ORDER BY index", lambda found: len(found) == request["output_tokens"])
    assert [t["index"] for t in tokens] == list(range(request["output_tokens"]))
    assert request["status"] == "ok" and request["rank"] == tokens[0]["rank"]
    assert request["ttft"] == tokens[0]["ts"] - root["ts"]
    assert (request["image_tokens"] or 0) == (9 if kind == "image" else 0)


def test_steps_are_equal_on_all_ranks(client: openai.OpenAI, rows: Rows, requests_of: Any) -> None:
    client.chat.completions.create(**requests_of.chat("What is 4 + 4?"))
    odd = "SELECT step FROM step GROUP BY step HAVING count(*) <> 2 OR count(DISTINCT rank) <> 2"
    assert rows("SELECT 1 FROM step HAVING count(*) > 0") and rows(odd, lambda found: not found) == []
    (counts,) = rows("SELECT min(step) AS first, max(step) AS last, count(DISTINCT step) AS n FROM step")
    assert (counts["first"], counts["last"]) == (1, counts["n"])


def test_every_assignment_is_counted(client: openai.OpenAI, rows: Rows, requests_of: Any) -> None:
    """Tokens computed x top-k: asked for, by experts, and computed, by slots."""
    client.chat.completions.create(**requests_of.chat("What is 1 + 1?"))
    sql = """SELECT layer, sum(tokens_in) AS tokens, sum(list_sum(tokens)) AS sent, sum(list_sum(physical)) AS computed,
             (SELECT sum(prefill_tokens + decode_tokens) FROM step) AS stepped FROM expert_load GROUP BY layer"""
    layers = rows(sql, lambda found: bool(found) and all(r["tokens"] == r["stepped"] for r in found))
    assert len(layers) == 4
    for row in layers:
        assert row["tokens"] == row["stepped"]
        assert row["sent"] == row["computed"] == 2 * row["tokens"]


def test_detail_rows_are_of_the_same_steps_on_all_ranks(client: openai.OpenAI, rows: Rows, requests_of: Any) -> None:
    client.chat.completions.create(**requests_of.chat("Count up from 1.", max_tokens=24) | {"extra_body": {"ignore_eos": True}})
    sql = "SELECT step, count(*) AS n, count(DISTINCT rank) AS ranks FROM layer GROUP BY step"
    found = rows(sql, lambda found: bool(found) and all(r["n"] == 8 for r in found))
    assert found and all((r["n"], r["ranks"]) == (4 * 2, 2) for r in found)
    headers = rows("SELECT count(*) AS n FROM collective WHERE op = 'header' GROUP BY step, seq", bool)
    assert all(r["n"] == 2 for r in headers)


def test_a_cancelled_request_is_told_as_such(control: ControlClient, server: Any, rows: Rows, requests_of: Any) -> None:
    import httpx

    body = {**requests_of.chat("Count up from 2.", max_tokens=900), "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
        trace = response.headers["x-request-id"]
        requests_of.wait_for_text(response)
    (request,) = rows(f"SELECT * FROM request WHERE trace_id = '{trace}'")
    assert request["status"] == "cancelled"
    assert request["decode"] > 0


def test_the_run_knows_its_surroundings(server: Any) -> None:
    info = server.run.info
    assert info.endpoint is not None and info.endpoint["url"] == server.url
    assert {"api", "rank0", "rank1"} <= set(info.fingerprints)
    assert info.layout == {"tp": 1, "pp": 1, "dp": 2, "ep": 2} and info.world_size == 2
