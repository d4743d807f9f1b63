"""Injected faults, several strengths and seeds: the first finding must be the fault, on the right rank; healthy engines must stay healthy.

The fast subset runs one seed; `-m slow` runs the others. Expected verdicts come from the injection: a placement is a fault where moving
experts would gain more than 5 % of the step by the simulated machine's own costs, and none where it would gain less than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from playbooks.document import Diagnosis
from playbooks.runner import diagnose

PREFILL = {"prompt": 500, "answer": 4, "requests": 70}
CHAT = {"prompt": 160, "answer": 14, "requests": 60}
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]


@dataclass(frozen=True)
class Scenario:
    """What is injected and where, under which traffic, and the cause to be found first (None: healthy)."""

    name: str
    cause: str | None
    fault: dict[str, Any] = field(default_factory=dict)
    traffic: dict[str, Any] = field(default_factory=lambda: {"rate": 8, **PREFILL})
    machine: dict[str, Any] = field(default_factory=dict)
    placement: str = "contiguous"


IMBALANCE, STRAGGLER, GC = "tail.expert-imbalance", "tail.straggler-rank", "tail.gc-pause"
QUEUE, REBALANCE, DRIFT = "tail.queueing", "tail.rebalance-stall", "env.drift"
SLOW = {"rate": 4, **PREFILL}
IMAGES = {"rate": 8, "image_share": 0.8, **PREFILL}
HEAVY = {"row": 30_000.0}

SCENARIOS = [
    Scenario("healthy, natural skew", None),
    Scenario("healthy, balanced", None, placement="balanced"),
    Scenario("healthy, pictures", None, traffic=IMAGES, placement="balanced"),
    Scenario("healthy, chat", None, traffic={"rate": 12, **CHAT}),
    Scenario("healthy, experts dominate", None, traffic=SLOW, machine=HEAVY, placement="balanced"),
    Scenario("healthy, contended host", None, {"contended": 0.3}, SLOW),
    Scenario("healthy, very contended host", None, {"contended": 0.8}, {"rate": 2.5, **PREFILL}, placement="balanced"),
    Scenario("healthy, contended chat", None, {"contended": 0.3}, {"rate": 5, **CHAT}),
    Scenario("healthy, no CPU clock", None, machine={"cpu_clock": False}, placement="balanced"),
    Scenario("packed", IMBALANCE, {"packed": 1.0, "where": 1}),
    Scenario("packed, pictures", IMBALANCE, {"packed": 1.0, "where": 3}, IMAGES),
    Scenario("packed, experts dominate", IMBALANCE, {"packed": 0.75}, SLOW, HEAVY),
    Scenario("packed, contended host", IMBALANCE, {"packed": 1.0, "contended": 0.3}, SLOW, HEAVY),
    Scenario("packed, very contended host", IMBALANCE, {"packed": 1.0, "contended": 0.8}, {"rate": 2, **PREFILL}, HEAVY),
    Scenario("packed, no CPU clock", IMBALANCE, {"packed": 1.0}, machine={"cpu_clock": False, **HEAVY}, traffic=SLOW),
    Scenario("slow 1.3", STRAGGLER, {"slow": 1.3, "where": 1}),
    Scenario("slow 2.5", STRAGGLER, {"slow": 2.5, "where": 0}, SLOW),
    Scenario("slow 1.3, contended host", STRAGGLER, {"slow": 1.3, "contended": 0.3, "where": 3}, {"rate": 3, **PREFILL}),
    Scenario("slow 1.6, chat", STRAGGLER, {"slow": 1.6}, {"rate": 8, **CHAT}),
    Scenario("slow 1.6, no CPU clock", STRAGGLER, {"slow": 1.6}, SLOW, {"cpu_clock": False}),
    Scenario("interrupted 2", STRAGGLER, {"interrupted": 2.0}, SLOW),
    Scenario("interrupted 3.5, contended host", STRAGGLER, {"interrupted": 3.5, "contended": 0.3, "where": 1}, {"rate": 2, **PREFILL}),
    Scenario("gc 40 ms", GC, {"gc_ms": 40, "where": 1}),
    Scenario("gc 120 ms, contended host", GC, {"gc_ms": 120, "contended": 0.3, "where": 1}, {"rate": 3, **PREFILL}),
    Scenario("overload", QUEUE, traffic={"rate": 70, **PREFILL, "requests": 130}, placement="balanced"),
    Scenario("rebalance", REBALANCE, {"rebalance_every": 40, "rebalance_ms": 150}),
    Scenario("drift", DRIFT, {"drift": True}, placement="balanced"),
]


def judged(lab: Any, scenario: Scenario, seed: int) -> Diagnosis:
    run = lab.run(
        lab.Fault(**scenario.fault),
        traffic=lab.Traffic(**scenario.traffic),
        machine=lab.Machine(**scenario.machine),
        seed=seed,
        placement=scenario.placement,
    )
    return diagnose(run, "tail-latency", argv=())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(", ", "-").replace(" ", "_"))
def test_injected(lab: Any, scenario: Scenario, seed: int) -> None:
    found = judged(lab, scenario, seed)
    share, said = lab.engine.true_share(), "\n".join(f"{check.id} {check.outcome}: {check.summary}" for check in found.checks)
    serious = [one for one in found.findings if one.severity != "info"]
    if scenario.cause is None:
        assert share < 0.05, "the scenario is not healthy"
        assert found.verdict == "healthy", said
        return
    if scenario.cause == IMBALANCE and not scenario.fault.get("contended"):
        assert share > 0.05, "the scenario is no fault"
    assert serious, said
    assert serious[0].id == scenario.cause, said
    assert {one.id for one in serious} == {scenario.cause}, said
    assert found.verdict == ("warning" if scenario.cause == DRIFT else "problem")
    if scenario.cause in (IMBALANCE, STRAGGLER, GC, DRIFT):
        assert serious[0].subject.labels["ranks"] == [lab.engine.fault.where]
    if scenario.cause == IMBALANCE:
        named = {int(layer): set(experts) for layer, experts in serious[0].subject.labels["experts_by_layer"].items()}
        assert all(experts <= set(lab.engine.hot_experts(layer)) for layer, experts in named.items())


def test_a_queue_made_by_uneven_experts_is_a_cascade(lab: Any) -> None:
    traffic = lab.Traffic(rate=17, image_share=0.8, prompt=500, answer=4, requests=130)
    found = diagnose(lab.run(lab.Fault(packed=1.0), traffic=traffic, machine=lab.Machine(row=40_000.0)), "tail-latency", argv=())
    assert [one.id for one in found.findings] == [IMBALANCE, QUEUE]
    queue = found.findings[1]
    assert (queue.role, queue.caused_by) == ("cascade", (IMBALANCE,))
    cured = diagnose(lab.run(traffic=traffic, machine=lab.Machine(row=40_000.0), placement="balanced"), "tail-latency", argv=())
    assert cured.verdict == "healthy"


def test_one_expert_that_is_too_hot_needs_a_second_slot(lab: Any) -> None:
    found = diagnose(lab.run(lab.Fault(hot=8.0), traffic=lab.Traffic(**SLOW), machine=lab.Machine(**HEAVY)), "tail-latency", argv=())
    first = found.findings[0]
    assert (first.id, first.severity, first.subject.labels["ranks"]) == (IMBALANCE, "error", [2])
    assert {8} == {expert for experts in first.subject.labels["experts_by_layer"].values() for expert in experts[:1]}
    assert "one more slot" in first.remedy[0].text and not first.remedy[0].automatic


def test_two_faults_are_two_roots_with_both_gains(lab: Any) -> None:
    found = diagnose(
        lab.run(lab.Fault(packed=1.0, slow=1.8, where=2), traffic=lab.Traffic(**SLOW), machine=lab.Machine(**HEAVY)),
        "tail-latency",
        argv=(),
    )
    assert {one.id for one in found.findings} == {IMBALANCE, STRAGGLER}
    for one in found.findings:
        assert one.role == "root" and one.impact is not None
        assert one.impact.alone is not None and one.impact.last is not None and one.impact.alone > one.impact.last * 0.9


def test_what_was_ruled_out_is_said(lab: Any) -> None:
    found = diagnose(lab.run(lab.Fault(slow=2.0), traffic=lab.Traffic(**SLOW)), "tail-latency", argv=())
    others = {other.id: other for other in found.findings[0].alternatives}
    assert others["tail.expert-imbalance"].score == 0.0
    assert others["tail.expert-imbalance"].ruled_out_by


def test_a_quota_is_named_as_what_interrupts(lab: Any) -> None:
    found = diagnose(lab.run(lab.Fault(interrupted=3.0), traffic=lab.Traffic(**SLOW)), "tail-latency", argv=())
    assert "its CPU quota" in found.findings[0].summary
    assert "in wall time only" in found.findings[0].summary


@pytest.mark.parametrize("seed", [0, 1])
def test_on_a_starved_host_a_stopped_rank_is_named_or_undetermined_but_never_ruled_out(lab: Any, seed: int) -> None:
    fault = lab.Fault(contended=1.0, interrupted=3.5)
    run = lab.run(fault, traffic=lab.Traffic(rate=4, prompt=500, answer=2, requests=24), seed=seed, placement="balanced")
    found = diagnose(run, "tail-latency", argv=())
    (check,) = [one for one in found.checks if one.id == "tail.straggler-rank"]
    assert (check.outcome, found.verdict) in (("fail", "problem"), ("skipped", "inconclusive"))


def test_one_rank_has_nothing_to_balance(lab: Any) -> None:
    machine = lab.Machine(ranks=1, hosts=("node0",))
    found = diagnose(lab.run(lab.Fault(where=0), machine=machine, traffic=lab.Traffic(rate=3, requests=40)), "tail-latency", argv=())
    assert {check.id: check.outcome for check in found.checks}["tail.expert-imbalance"] == "not_applicable"
    assert found.verdict == "healthy"


def test_two_hosts_say_whether_it_is_between_them_or_inside(lab: Any) -> None:
    machine = lab.Machine(hosts=("node0", "node0", "node1", "node1"), **HEAVY)
    found = diagnose(lab.run(lab.Fault(packed=1.0, where=3), traffic=lab.Traffic(**SLOW), machine=machine), "tail-latency", argv=())
    notes = {item.note: item.observed for item in found.findings[0].evidence}
    assert found.findings[0].subject.labels["hosts"] == ["node1"]
    assert notes["between hosts"] > 1.05 and notes["inside the most uneven host"] > 1.1
