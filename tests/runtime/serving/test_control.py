"""The control endpoint on a live server, through the client that playbooks use."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from runtime.control_client import ControlClient, ControlRefused
from runtime.launcher import ServerProcess
from traces.errors import Unreachable
from traces.run import create_run

Rows = Callable[..., list[dict[str, Any]]]


def answers(client: openai.OpenAI, requests_of: Any) -> list[str | None]:
    asked = [requests_of.chat(f"What is {n} + 2?", max_tokens=12) for n in range(4)]
    return [client.chat.completions.create(**a).choices[0].message.content for a in asked]


def test_state_tells_the_ranks(control: ControlClient) -> None:
    state = control.state()
    assert (state["world"], state["model"]) == (2, "shapes-moe")
    assert [load["rank"] for load in state["loads"]] == [0, 1]


def test_the_token_is_the_runs_own_and_private(server: ServerProcess) -> None:
    file = Path(server.run.info.endpoint["control_token_file"])  # type: ignore[index]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for headers in ({}, {"authorization": "Bearer wrong"}):
        assert httpx.get(f"{server.url}/control/state", headers=headers).status_code == 401


def test_a_window_is_recorded_in_full_on_all_ranks(control: ControlClient, client: openai.OpenAI, rows: Rows, requests_of: Any) -> None:
    before = control.state()["detail_every"]
    control.set_detail(0)
    try:
        window = control.window(5)
        assert window["last"] == window["first"] + 4
        client.chat.completions.create(**requests_of.chat("Count up from 3.", max_tokens=16) | {"extra_body": {"ignore_eos": True}})
    finally:
        control.set_detail(before)
    sql = f"SELECT rank, step FROM layer WHERE step BETWEEN {window['first']} AND {window['first'] + 14} GROUP BY rank, step"
    found = rows(sql, lambda found: len(found) >= 10)
    assert sorted((r["rank"], r["step"]) for r in found) == [(rank, window["first"] + i) for rank in range(2) for i in range(5)]


def test_a_new_placement_keeps_the_answers(control: ControlClient, client: openai.OpenAI, rows: Rows, requests_of: Any) -> None:
    before, old = answers(client, requests_of), control.placement()
    layers = [[layer[(slot + 5) % 16] for slot in range(16)] for layer in old["layers"]]
    done = control.set_placement(layers, source="rebalance", reason="test")
    assert done["version"] == old["version"] + 1 and done["moved"] == 4 * 16
    assert control.placement()["layers"] == layers
    assert answers(client, requests_of) == before
    recorded = rows(f"SELECT * FROM placement WHERE placement = {done['version']} ORDER BY layer", lambda found: len(found) == 4)
    assert [list(r["physical_to_logical"]) for r in recorded] == layers
    assert {(r["step"], r["source"], r["reason"]) for r in recorded} == {(done["step"], "rebalance", "test")}
    mixed = f"SELECT 1 FROM step WHERE (step >= {done['step']}) <> (placement >= {done['version']})"
    assert rows(mixed, lambda found: not found) == []


def test_a_placement_can_change_while_requests_run(control: ControlClient, client: openai.OpenAI, requests_of: Any) -> None:
    asked = requests_of.chat("Count up from 1.", max_tokens=60) | {"extra_body": {"ignore_eos": True}}
    alone = client.chat.completions.create(**asked).choices[0].message.content
    layers = [list(reversed(layer)) for layer in control.placement()["layers"]]
    stream = client.chat.completions.create(**asked, stream=True)
    text = "".join(next(stream).choices[0].delta.content or "" for _ in range(3))
    step = control.set_placement(layers, reason="while serving")["step"]
    text += "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == alone
    assert control.state()["step"] > step


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda layers: [[*layer[:-1], layer[0]] for layer in layers], "without a slot"),
        (lambda layers: layers[:-1], "3 layers"),
        (lambda layers: [[*layer, 99, 99] for layer in layers], "experts"),
        (lambda layers: [layer + layer for layer in layers], "32 slots"),
    ],
)
def test_a_bad_placement_is_refused_and_nothing_changes(control: ControlClient, change: Any, word: str) -> None:
    before = control.placement()
    with pytest.raises(ControlRefused, match=word):
        control.set_placement(change(before["layers"]))
    assert control.placement() == before


def test_stacks_show_where_a_rank_stands(control: ControlClient, rows: Rows) -> None:
    try:
        found = control.stacks(1)
    except ControlRefused as refused:
        pytest.skip(f"py-spy may not look here: {refused.message}")
    assert any("engine.py" in frame for sample in found["samples"] for frame in sample["frames"])
    assert rows("SELECT * FROM stack WHERE rank = 1")


def test_bad_bodies_are_refused(control: ControlClient) -> None:
    for call in (lambda: control.window(0), lambda: control.set_detail(-1), lambda: control.stacks(7)):
        with pytest.raises(ControlRefused):
            call()


def test_a_run_without_a_server_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="no live server"):
        ControlClient.for_run(create_run(model="m", root=tmp_path))
