"""The demonstration itself: every stage in order, and nothing left running whatever happens."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from playbooks.document import Diagnosis
from playbooks.remedy import apply
from playbooks.runner import diagnose
from playbooks.tail_latency.stale_placement import measured_counts, stale
from probes.doctor import examine
from runtime.expert_balance import balanced
from runtime.shipped import shapes_moe
from traces.errors import BadAnswer
from traces.run import Run, runs_root
from traces.store import open_run, write_document
from workbench.demo.document import Demo, Fault
from workbench.demo.judge import problems
from workbench.demo.measure import Phase, measure
from workbench.demo.narrator import Narrator
from workbench.demo.scenario import Scenario
from workbench.demo.served import Served, serving
from workbench.demo.table import compare
from workbench.report.page import write_report

SYMPTOM = "tail-latency"
ANOTHER = "a map computed for other traffic"  # true, and no more than an operator would write


def demonstrate(scenario: Scenario, narrator: Narrator) -> Demo:
    """The whole demonstration. Raises BadAnswer when a stage cannot go on, and what the floors below raise."""
    _doctor(narrator)
    with serving(scenario, narrator) as served:
        show = Show(scenario, narrator, served)
        show.warm_up()
        before, healthy = show.phase("before", 1), show.diagnose("before")
        fault = show.break_placement()
        during, named = show.phase("during", 2), show.diagnose("during")
        repaired = show.repair(named)
        after, cured = show.phase("after", 3), show.diagnose("after")
        found = problems(healthy, repaired, fault, (before, during, after))
        demo = Demo(
            run=served.run.id,
            path=str(served.run.path),
            report=str(served.run.path / "reports" / "demo.html"),
            ok=not found,
            problems=found,
            stages=tuple(narrator.stages),
            fault=fault,
            before=healthy.to_dict() | before.document(),
            during=repaired.to_dict() | during.document(),
            after=cured.to_dict() | after.document(),
            comparison=compare(before, during, after),
        )
        write_document(served.run, demo.schema, demo.to_dict())
    return _reported(served.run, demo, narrator)


def _doctor(narrator: Narrator) -> None:
    with narrator.stage("doctor", "Checking this installation"):
        checks = list(examine(runs_root(), shapes_moe(), deep=True))
        if failed := [check for check in checks if check.status == "fail"]:
            raise BadAnswer(f"{failed[0].name}: {failed[0].observed}", failed[0].remedy)
        warnings = [check.name for check in checks if check.status == "warn"]
        narrator.say(f"{len(checks)} checks, {'no warning' if not warnings else 'warnings about ' + ', '.join(warnings)}")


def _reported(run: Run, demo: Demo, narrator: Narrator) -> Demo:
    with narrator.stage("report", "Writing the report"):
        written = write_report(run, Path(demo.report))
        narrator.say(f"{len(written.figures)} figures, {written.bytes / 1e6:.1f} MB: {written.path}")
    return msgspec.structs.replace(demo, stages=tuple(narrator.stages))


class Show:
    """The stages that happen on the live server."""

    def __init__(self, scenario: Scenario, narrator: Narrator, served: Served) -> None:
        self.scenario, self.narrator, self.served = scenario, narrator, served
        self.since = 0  # start of the latest phase's measured traffic, ns

    def warm_up(self) -> None:
        """First traffic; from its counts, the placement that this deployment would run with."""
        with self.narrator.stage("warm-up", "Warming up, and placing the experts by what is measured"):
            first = self.served.send(self.scenario.first())
            self.since = first.started
            self.served.settle(first)
            with open_run(self.served.run) as store:
                counts = measured_counts(store, self.since)
            even = balanced([counts[layer] for layer in sorted(counts)], self.scenario.ranks, source="initial")
            moved = self.served.place(even.physical_to_logical, "initial", "balanced by the counts of the warm-up")
            self.narrator.say(f"{moved['moved']} expert slots moved, stepping stopped for {moved['stall_ns'] / 1e6:.1f} ms")

    def phase(self, name: str, number: int) -> Phase:
        """The same two kinds of traffic in every phase, measured over the second."""
        with self.narrator.stage(f"traffic {name}", f"Traffic, {name}: pictures and questions, then long prompts"):
            exact = self._send(name, number)
            with open_run(self.served.run) as store:
                found = measure(store, name, exact)
            right = "" if exact is None else f"{exact:.0%} of the judged answers right, "
            self.narrator.say(f"{right}busiest rank {found.imbalance.value:.2f} x the mean, median answer {found.p50.value:.0f} ms")
        return found

    def _send(self, name: str, number: int) -> float | None:
        """Both kinds of traffic, until they have reached the store. The share of right answers."""
        judged = self.served.send(self.scenario.judged(name, number))
        load = self.served.send(self.scenario.measured(name, number))
        self.since = load.started
        self.served.settle(load)
        return judged.summary.exact.share

    def diagnose(self, name: str) -> Diagnosis:
        with self.narrator.stage(f"diagnose {name}", f"Diagnosing {SYMPTOM}, {name}"):
            found = diagnose(self.served.run, SYMPTOM)
            write_document(self.served.run, found.schema, found.to_dict())
            self.narrator.say(found.verdict + (f": {found.findings[0].title}" if found.findings else ""))
        return found

    def break_placement(self) -> Fault:
        """Sets the stale placement through the control endpoint, as an operator with an old map would. The playbook is told nothing."""
        with self.narrator.stage("break", "Breaking it: a stale expert placement that packs the popular experts on one rank"):
            with open_run(self.served.run) as store:
                counts = measured_counts(store, self.since)
            rank = random.Random(f"demo {self.scenario.seed}").randrange(self.scenario.ranks)
            packed = stale(counts, self.scenario.ranks, rank)
            done = self.served.place(packed.layers, "control", ANOTHER)
            self.narrator.say(f"placement {done['version']}: rank {rank} now has the most popular experts of {len(counts)} layers")
        return Fault(rank=rank, layers=tuple(sorted(counts)), experts=packed.experts, placement=int(done["version"]))

    def repair(self, named: Diagnosis) -> Diagnosis:
        """Lets the playbook carry out its remedy on the live run."""
        with self.narrator.stage("repair", "Carrying out the remedy on the live server"):
            repaired = apply(self.served.run, named, self.scenario.verifying(), self.narrator.aside)
            write_document(self.served.run, repaired.schema, repaired.to_dict())
            verdicts = [f"{one.verdict}{', answers unchanged' if one.answers_equal else ''}" for one in repaired.applied]
            self.narrator.say("; ".join(verdicts) or "the playbook had no remedy that it may carry out")
        return repaired
