"""The remedy: how it is judged, when it refuses, and, on a live server (slow), that it cures, and is taken back when an answer changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from playbooks import answers, verify_traffic
from playbooks.document import Diagnosis
from playbooks.measure_again import Sample, judge
from playbooks.remedy import apply, automatic
from playbooks.runner import diagnose
from probes.traffic.plan import TrafficPlan
from runtime.control_client import ControlClient
from traces.errors import Unreachable
from traces.run import Run
from traces.store import open_run

PLAN = TrafficPlan(mix="prefill-heavy", concurrency=8, requests=150, turns=12, max_tokens=1, image_share=0.25, phase="verify")


def sample(cost: float, uneven: float, steps: int = 80, seed: int = 0, noise: float = 0.1) -> Sample:
    rng = np.random.default_rng(seed)
    rows = rng.integers(100, 400, steps).astype(float)
    mean = rows / 4
    return Sample(1, "cpu", mean * uneven, mean, rows * cost * np.exp(rng.normal(0, noise, steps)), rows)


@pytest.mark.parametrize(
    ("cost", "uneven", "verdict"),
    [(60.0, 1.1, "improved"), (100.0, 2.0, "unchanged"), (130.0, 1.1, "worse"), (100.0, 1.05, "undetermined"), (99.5, 1.999, "unchanged")],
)
def test_verdict(cost: float, uneven: float, verdict: str) -> None:
    assert judge(sample(100.0, 2.0), sample(cost, uneven, seed=1))[0] == verdict


def test_too_few_steps_decide_nothing() -> None:
    verdict, said = judge(sample(100.0, 2.0), sample(10.0, 1.0, steps=12))
    assert verdict == "undetermined" and "12 after" in said


def test_no_gain_within_the_noise_is_not_an_improvement() -> None:
    verdicts = [judge(sample(100.0, 2.0, 40, seed, 0.4), sample(100.0, 2.0, 40, seed + 50, 0.4))[0] for seed in range(20)]
    assert "improved" not in verdicts


def test_only_stable_answers_prove_something() -> None:
    known = answers.Answers({"a": "1", "b": "2"}, 3)
    assert known.differ({"a": "1", "b": "2", "c": "x"}) == []
    assert known.differ({"a": "1", "b": "3"}) == ["b"]


def test_a_recorded_run_is_refused(lab: Any) -> None:
    traffic = lab.Traffic(requests=70, rate=6, prompt=500, answer=3)
    run = lab.run(lab.Fault(packed=1.0), traffic=traffic, machine=lab.Machine(row=30_000.0))
    found = diagnose(run, "tail-latency", argv=())
    assert automatic(found) is not None
    with pytest.raises(Unreachable, match="not live"):
        apply(run, found)


def test_a_healthy_diagnosis_has_nothing_to_apply(lab: Any) -> None:
    run = lab.run(traffic=lab.Traffic(requests=60), placement="balanced")
    found = diagnose(run, "tail-latency", argv=())
    assert apply(run, found) == found


def test_the_last_recorded_plan_is_sent_again_cut_to_size(lab: Any) -> None:
    recorded = TrafficPlan(mix="prefill-heavy", rate=40.0, requests=5000, turns=9, seed=3, phase="load")
    events = [
        {"ts": ts, "dur": 1, "resource_id": "traffic", "kind": "traffic", "attrs": json.dumps({"plan": plan})}
        for ts, plan in ((1, {"mix": "shapes"}), (2, recorded.described()))
    ]
    with open_run(lab.with_rows({"event": events})) as store:
        plan = verify_traffic.plan_like_last(store)
    assert (plan.mix, plan.rate, plan.turns, plan.seed, plan.phase) == ("prefill-heavy", 40.0, 9, 3, "verify")
    assert plan.requests == verify_traffic.REQUESTS
    with open_run(lab.with_rows({})) as store:
        assert verify_traffic.plan_like_last(store).mix == "prefill-heavy"


# -- a live server ------------------------------------------------------------------------------------------------------------------


@dataclass
class Live:
    run: Run
    control: ControlClient
    url: str

    def send(self, plan: TrafficPlan = PLAN) -> None:
        from probes.traffic.generator import run_traffic

        self.control.window(100_000)
        asyncio.run(run_traffic(plan, self.url))

    def pack(self, rank: int, spare: int = 0) -> None:
        """The most popular experts of every layer together on one rank; `spare` slots a rank hold the least popular ones once more."""
        with open_run(self.run) as store:
            heat = store.rows("SELECT layer, expert, tokens FROM expert_heat ORDER BY layer, tokens DESC")
        layers = []
        for number in sorted({row["layer"] for row in heat}):
            order = [row["expert"] for row in heat if row["layer"] == number]
            half = len(order) // 2
            hot, cold = order[:half] + order[len(order) - spare :], order[half:] + order[len(order) - spare :]
            layers.append(hot + cold if rank == 0 else cold + hot)
        self.control.set_placement(layers, reason="for other traffic")


@contextmanager
def serving(root: Path, **settings: Any) -> Iterator[Live]:
    from runtime.serve_config import ServeConfig
    from runtime.server_process import start_server
    from runtime.shipped import shapes_moe

    model = str(shapes_moe())
    server = start_server(ServeConfig(model=model, ep=2, port=0, detail_every=1, max_tokens_per_step=256, run_root=str(root), **settings))
    try:
        with ControlClient.for_run(server.run) as control:
            yield Live(server.run, control, server.url)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("live")) as one:
        yield one


def diagnosed(live: Live, spare: int = 0) -> Diagnosis:
    live.send()
    live.pack(1, spare)
    live.send()
    found = diagnose(live.run, "tail-latency", argv=())
    first = found.findings[0]
    assert first.id == "tail.expert-imbalance", [f"{check.id}: {check.summary}" for check in found.checks]
    assert first.subject.labels["ranks"] == [1]
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_cure_is_measured(live: Live) -> None:
    cured = apply(live.run, diagnosed(live), verify_traffic=PLAN)
    done = cured.applied[0]
    assert done.verdict == "improved", done.note
    assert done.answers_equal and not done.rolled_back
    assert done.after["imbalance"] < 1.2 < done.before["imbalance"]
    assert done.after["expert_ns_per_row"] < done.before["expert_ns_per_row"]
    assert cured.invocation.exit_code == (0 if not done.remaining else 3)
    assert live.control.placement()["version"] == done.after["placement"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spare_slots_are_given_to_the_hottest_experts(tmp_path: Path) -> None:
    with serving(tmp_path, redundant_experts=4) as live:
        done = apply(live.run, diagnosed(live, spare=2), verify_traffic=PLAN).applied[0]
        placed = live.control.placement()
        with open_run(live.run) as store:
            heat = store.rows("SELECT layer, expert FROM expert_heat ORDER BY layer, tokens DESC")
            (told,) = store.rows(f"SELECT max(stall) AS stall, count(*) AS layers FROM placement WHERE placement = {placed['version']}")
    assert done.verdict == "improved" and done.answers_equal, done.note
    assert done.after["imbalance"] < 1.2 < done.before["imbalance"]
    assert (told["layers"], told["stall"] > 0) == (4, True)
    for number, layer in enumerate(placed["layers"]):
        hottest = next(row["expert"] for row in heat if row["layer"] == sorted({r["layer"] for r in heat})[number])
        assert layer.count(hottest) >= 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_changed_answer_takes_it_back(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(live)
    packed = live.control.placement()
    real, asked = answers.ask, []

    def third_time_other(url: str) -> dict[str, str]:
        asked.append(url)
        given = real(url)
        return given if len(asked) < 3 else {prompt: text + "!" for prompt, text in given.items()}

    monkeypatch.setattr(answers, "ask", third_time_other)
    done = apply(live.run, found, verify_traffic=PLAN).applied[0]
    assert (done.verdict, done.rolled_back, done.answers_equal) == ("worse", True, False)
    now = live.control.placement()
    assert now["layers"] == packed["layers"] and now["version"] == packed["version"] + 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_diagnosis_of_another_placement_is_refused(live: Live) -> None:
    from traces.errors import UsageError

    found = diagnosed(live)
    live.pack(0)
    with pytest.raises(UsageError, match="diagnose again"):
        apply(live.run, found)
