"""A profiler window on all ranks of a live server: the same steps, real operators, answers unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import openai
import pytest
from click.testing import CliRunner

from runtime.control_client import ControlClient, ControlRefused
from runtime.launcher import ServerProcess

Rows = Callable[..., list[dict[str, Any]]]
STEPS = 6


def ask(client: openai.OpenAI, requests_of: Any) -> str:
    settings = requests_of.chat("Count up from 3.", max_tokens=24) | {"extra_body": {"ignore_eos": True}}
    return str(client.chat.completions.create(**settings).choices[0].message.content)


def test_all_ranks_profile_the_same_steps(control: ControlClient, client: openai.OpenAI, rows: Rows, requests_of: Any) -> None:
    before = ask(client, requests_of)
    window = control.profile(STEPS)
    assert ask(client, requests_of) == before
    span = f"step_first = {window['first']} AND step_last = {window['last']}"
    found = rows(f"SELECT rank, sum(self_cpu) AS ns FROM operator WHERE {span} GROUP BY rank ORDER BY rank", lambda found: len(found) == 2)
    assert window["last"] - window["first"] + 1 == STEPS
    assert [row["rank"] for row in found] == [0, 1]
    assert all(row["ns"] > 0 for row in found)
    # torch.profiler's own names: the projections of the layers and the head
    named = rows(f"SELECT name, sum(calls) AS calls, max(tokens) AS tokens FROM operator WHERE {span} GROUP BY name")
    calls = {row["name"]: row["calls"] for row in named}
    assert calls["aten::addmm"] + calls.get("aten::mm", 0) >= 2 * STEPS
    stalls = rows("SELECT rank, dur FROM event WHERE kind = 'profile'", lambda found: len(found) >= 2)
    assert {row["rank"] for row in stalls} == {0, 1}


@pytest.mark.parametrize("steps", [0, 5000])
def test_a_senseless_length_is_refused(control: ControlClient, steps: int) -> None:
    with pytest.raises(ControlRefused, match="1 to 1000 steps"):
        control.profile(steps)


def test_without_traffic_it_says_so(server: ServerProcess) -> None:
    from workbench.cli.main import run

    assert run(["profile", "--run", str(server.run.path), "--steps", "2", "--wait", "0.5"]) == 1


def test_the_command_answers_in_json(server: ServerProcess, client: openai.OpenAI, requests_of: Any) -> None:
    from workbench.cli.profile import profile

    answered = Event()

    def ask_until_answered() -> None:  # steps happen only while there is traffic
        while not answered.is_set():
            ask(client, requests_of)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_until_answered)
        try:
            shown = CliRunner().invoke(profile, ["--run", str(server.run.path), "--steps", str(STEPS), "--json"])
        finally:
            answered.set()
        asked.result()
    document = json.loads(shown.stdout)
    assert document["schema"] == "workbench.profile.v1"
    assert document["ranks"] == [0, 1]
    assert document["steps"]["last"] - document["steps"]["first"] + 1 == STEPS
    assert sum(one["share"] for one in document["operators"]) == pytest.approx(1.0)
