"""Carries out a safe remedy on a live run of ours, measures again, and takes it back when nothing was gained.

In this order: fixed prompts are asked; the present is measured; the change is made through the control endpoint; the prompts are
asked again, and a different answer takes the change back at once; the same traffic is measured again; the run is diagnosed again.
What is not improved, or could not be shown not to hurt, does not stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from playbooks import answers, verify_traffic
from playbooks.document import Applied, Diagnosis, Finding, Improvement, Remedy
from playbooks.exit_codes import exit_code
from playbooks.expert_counts import ExpertCounts, read
from playbooks.measure_again import Sample, judge
from playbooks.runner import Asked, diagnose
from playbooks.tail_latency.expert_limits import ID as EXPERT_IMBALANCE
from playbooks.tail_latency.move_experts import Move, plan_move
from playbooks.window import Period
from probes.traffic.plan import TrafficPlan
from runtime.control_client import ControlClient
from traces.errors import Unreachable, UsageError
from traces.run import Run
from traces.store import open_run

Say = Callable[[str], None]
# Prompts that must have given the same answer twice before the change, or equality after it proves nothing.
LEAST_STABLE = 3


@dataclass(slots=True)
class _Change:
    """A change in the making, with what is needed to take it back."""

    run: Run
    control: ControlClient
    finding: Finding
    remedy: Remedy
    old: list[list[int]]
    shape: tuple[int, int]  # hosts, and groups of experts the router knows
    say: Say
    prompts: answers.Answers
    since: int = 0
    rounds: int | None = None

    def take_back(self, why: str) -> None:
        self.say(f"taking the placement back: {why}")
        self.control.set_placement(self.old, source="rebalance", reason=f"taken back: {why}")

    def applied(self, verdict: Improvement, before: dict[str, Any], after: dict[str, Any], note: str, **rest: Any) -> Applied:
        return Applied(remedy=self.remedy.text, finding=self.finding.id, before=before, after=after, verdict=verdict, note=note, **rest)


def apply(run: Run, diagnosis: Diagnosis, verify_traffic: TrafficPlan | None = None, on_progress: Say | None = None) -> Diagnosis:
    """The diagnosis with `applied` filled in; unchanged if none of its remedies may be carried out by itself.

    `verify_traffic` is sent before and after; without it ongoing traffic is used, or a plan like the last recorded one is sent.
    Raises Unreachable when the run is not live, UsageError when the diagnosis is of another placement than the one in force.
    """
    chosen = automatic(diagnosis)
    if chosen is None:
        return diagnosis
    finding, remedy = chosen
    if run.collector() is None:
        raise Unreachable(
            f"the run {run.id} is not live: a remedy changes a server that is running", "diagnose a live run, or leave out --apply"
        )
    say = on_progress or (lambda words: None)
    with ControlClient.for_run(run) as control:
        placement = control.placement()
        _same_placement(finding, placement)
        say("asking fixed prompts")
        prompts = answers.before(control.url)
        old = [list(layer) for layer in placement["layers"]]
        shape = int(placement.get("hosts", 1)), int(placement.get("groups", 1))
        change = _Change(run, control, finding, remedy, old, shape, say, prompts)
        done = _carry_out(change, verify_traffic, diagnosis.symptom)
    code = exit_code(diagnosis.verdict, diagnosis.findings, (*diagnosis.applied, done))
    invocation = msgspec.structs.replace(diagnosis.invocation, ended=time.time_ns(), exit_code=int(code))
    return msgspec.structs.replace(diagnosis, applied=(*diagnosis.applied, done), invocation=invocation)


def automatic(diagnosis: Diagnosis) -> tuple[Finding, Remedy] | None:
    """The first finding with a remedy that may be carried out without a person."""
    for finding in diagnosis.findings:
        for remedy in finding.remedy:
            if remedy.automatic and finding.id == EXPERT_IMBALANCE:
                return finding, remedy
    return None


def _same_placement(finding: Finding, placement: dict[str, Any]) -> None:
    diagnosed = finding.subject.labels.get("placement")
    if diagnosed != placement["version"]:
        raise UsageError(
            f"the diagnosis is of placement {diagnosed}, the server runs placement {placement['version']}", "diagnose again, then apply"
        )


def _carry_out(change: _Change, plan: TrafficPlan | None, symptom: str) -> Applied:
    counts = _counts(change)
    move = plan_move(counts, change.old, *change.shape)
    if len(change.prompts.stable) < LEAST_STABLE:
        note = (
            f"only {len(change.prompts.stable)} of {change.prompts.asked} greedy answers are the same twice in a "
            "row: a change could not be checked"
        )
        return change.applied("undetermined", {}, {}, note)
    if not move.changed:
        return change.applied("unchanged", {}, {}, "no placement would be better by more than 2 %: nothing was changed")
    flowing = plan is None and verify_traffic.ongoing(change.control)
    if plan is None and not flowing:
        with open_run(change.run) as store:
            plan = verify_traffic.plan_like_last(store)
    before = _before(change, plan, counts.version)
    switched = _switch(change, move)
    if differing := change.prompts.differ(answers.ask(change.control.url)):
        change.take_back("an answer changed")
        note = f"greedy answers changed ({differing[0]!r} and {len(differing) - 1} more): the old placement is back"
        return change.applied("worse", before.document(), {}, note, rolled_back=True, answers_equal=False)
    after = _after(change, plan, int(switched["version"]))
    return _verdict(
        change,
        before,
        after,
        f"{move.moved} slots moved in {len(move.changed)} layers, stepping stopped for {switched['stall_ns'] / 1e6:.1f} ms",
        symptom,
    )


def _counts(change: _Change) -> ExpertCounts:
    """The counts of the window that was diagnosed."""
    window, labels = change.finding.window, change.finding.subject.labels
    first, last = (window.steps[0], window.steps[-1]) if window.steps else (-1, -1)
    world = int(change.control.state()["layout"]["ep"])
    with open_run(change.run) as store:
        return read(store, Period(window.t0, window.t1, first, last, "diagnosed"), int(labels["placement"]), world)


def _before(change: _Change, plan: TrafficPlan | None, version: int) -> Sample:
    change.say("measuring before" + (f": {plan.label}" if plan else ", in the diagnosed window"))
    if plan is not None:
        sampled, change.rounds = verify_traffic.send(change.run, change.control, plan, version)
        return sampled
    window = change.finding.window
    with open_run(change.run) as store:
        return verify_traffic.measured(store, window.t0, window.t1, version)


def _switch(change: _Change, move: Move) -> dict[str, Any]:
    change.say(f"moving {move.moved} expert slots in {len(move.changed)} layers")
    reason = f"{change.finding.id}: spreads the measured rows (finding {change.finding.fingerprint})"
    switched = change.control.set_placement(move.layers, source="rebalance", reason=reason)
    change.since = time.time_ns()
    return switched


def _after(change: _Change, plan: TrafficPlan | None, version: int) -> Sample:
    change.say("measuring after")
    if plan is not None:
        return verify_traffic.send(change.run, change.control, plan, version, change.rounds)[0]
    return verify_traffic.wait_for_steps(change.run, change.control, change.since, version)


def _verdict(change: _Change, before: Sample, after: Sample, done: str, symptom: str) -> Applied:
    """unchanged or worse does not stay; undetermined stays, since the rows are more even and the answers equal, and says so."""
    verdict, said = judge(before, after)
    note = f"{done}; {said}"
    taken_back = verdict in ("unchanged", "worse")
    if taken_back:
        change.take_back(f"expert time {verdict}")
        return change.applied(
            verdict, before.document(), after.document(), f"{note}; the old placement is back", rolled_back=True, answers_equal=True
        )
    again = diagnose(change.run, symptom, window=Asked(since=change.since), argv=())
    left = tuple(one.id for one in again.findings if one.role == "root" and one.severity in ("critical", "error"))
    after_document = after.document() | {"verdict": again.verdict}
    return change.applied(verdict, before.document(), after_document, note, answers_equal=True, remaining=left)
