"""The runner: windows, needs, missing evidence, plug-ins, events, evidence that derives again, no torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from playbooks import symptoms
from playbooks.check import Check, Need, Result, passed
from playbooks.document import Diagnosis
from playbooks.runner import Asked, CheckEvent, diagnose
from playbooks.window import choose
from traces.store import open_run

SECOND = 1_000_000_000


def outcomes(found: Diagnosis) -> dict[str, str]:
    return {check.id: check.outcome for check in found.checks}


def test_an_empty_run_is_inconclusive_and_says_what_would_help(lab: Any) -> None:
    run = lab.with_rows({}, endpoint={"url": "http://127.0.0.1:1"})
    found = diagnose(run, "tail-latency", argv=())
    assert (found.verdict, found.invocation.exit_code) == ("inconclusive", 5)
    skipped = [check for check in found.checks if check.mandatory]
    assert {check.id for check in skipped} == {"tail.expert-imbalance", "tail.straggler-rank", "tail.queueing"}
    for check in skipped:
        assert check.outcome == "skipped"
        assert "workbench traffic http://127.0.0.1:1" in check.missing[0]


def test_too_little_traffic_is_inconclusive(lab: Any) -> None:
    found = diagnose(lab.run(traffic=lab.Traffic(requests=6, answer=2)), "tail-latency", argv=())
    assert found.verdict == "inconclusive"
    assert "of 30 in the window" in next(check.missing[0] for check in found.checks if check.id == "tail.queueing")


def test_without_detail_the_layers_are_not_judged(lab: Any) -> None:
    found = diagnose(lab.run(machine=lab.Machine(detail_every=10_000), traffic=lab.Traffic(requests=50)), "tail-latency", argv=())
    assert outcomes(found)["tail.expert-imbalance"] == "skipped"
    assert outcomes(found)["tail.queueing"] == "pass"
    assert found.verdict == "inconclusive"


def test_an_unknown_symptom_names_the_known(lab: Any) -> None:
    with pytest.raises(symptoms.UnknownSymptom, match="no playbook") as caught:
        diagnose(lab.with_rows({}), "tail-latncy", argv=())
    assert "tail-latency" in caught.value.hint and caught.value.exit_code == 2


def test_cheapest_first_and_every_check_is_told(lab: Any) -> None:
    events: list[CheckEvent] = []
    found = diagnose(lab.run(traffic=lab.Traffic(requests=40)), "tail-latency", on_step=events.append, argv=())
    assert [event.check for event in events if event.state == "finished"] == [check.id for check in found.checks]
    assert found.checks[0].id == "env.drift"
    assert all(event.record is not None for event in events if event.state == "finished")
    assert events[0].state == "started" and events[0].total == len(found.checks)


def test_every_number_of_sql_evidence_derives_again(lab: Any) -> None:
    run = lab.run(lab.Fault(packed=1.0), traffic=lab.Traffic(requests=60, rate=8, prompt=500, answer=3))
    found = diagnose(run, "tail-latency", argv=())
    items = [item for finding in found.findings for item in finding.evidence if item.kind == "sql"]
    assert len(items) >= 4
    with open_run(run) as store:
        for item in items:
            assert next(iter(store.rows(item.query)[0].values())) == item.observed
            assert item.rows_sha256 is not None and item.source == f"run:{run.id}"


def test_the_window_starts_at_the_latest_placement_change(lab: Any) -> None:
    run = lab.run(lab.Fault(rebalance_every=90), traffic=lab.Traffic(requests=60))
    with open_run(run) as store:
        period = choose(store)
        switched = store.rows("SELECT max(ts) AS ts, max(step) AS step FROM placement")[0]
    assert period.t0 == switched["ts"]
    assert period.first >= switched["step"]
    assert "latest change of the expert placement" in period.reason


def test_a_diagnosis_after_the_cure_does_not_see_the_time_before(lab: Any) -> None:
    from dataclasses import replace

    traffic = lab.Traffic(requests=60, rate=8, prompt=500, answer=3)
    engine = lab.make(lab.Fault(packed=1.0), traffic=traffic)
    engine.run()
    engine.switch(lab.make(placement="balanced", traffic=traffic).slots, 5.0)
    engine.fault = replace(engine.fault, packed=0.0)
    engine.run()
    run = lab.record(engine)
    assert diagnose(run, "tail-latency", argv=()).verdict == "healthy"
    with open_run(run) as store:
        switched = store.rows("SELECT max(ts) AS ts FROM placement")[0]["ts"]
    before = diagnose(run, "tail-latency", window=Asked(until=switched), argv=())
    assert before.findings[0].id == "tail.expert-imbalance"
    assert before.sources[0].window is not None and before.sources[0].window.t1 <= switched


def test_the_last_contiguous_traffic_is_judged(lab: Any) -> None:
    engine = lab.make(traffic=lab.Traffic(requests=40))
    engine.run()
    engine.clock += 30 * SECOND
    resumed = engine.start + int(engine.clock.max())
    engine.run()
    with open_run(lab.record(engine)) as store:
        period = choose(store)
        asked = choose(store, last=2.0)
    assert resumed - SECOND <= period.t0 <= resumed + SECOND
    assert asked.t1 - asked.t0 == 2 * SECOND


def failing(case: Any) -> Result:
    raise LookupError("no such column")


def site(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs one entry point whose object is `value`."""
    point = EntryPoint(name=name, value="our_site:CHECKS", group=symptoms.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: value() if callable(value) else value)
    monkeypatch.setattr(symptoms, "entry_points", lambda group: [point])


def test_a_site_adds_a_cause(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Check("tail.site", "Ours", True, 5, lambda case: passed("fine", 1), (Need("steps", "step", 10**9, "wait"),))
    site("tail.site", mine, monkeypatch)
    found = diagnose(lab.with_rows({}), "tail-latency", argv=())
    assert outcomes(found)["tail.site"] == "skipped"
    site("hang", [mine], monkeypatch)
    assert "tail.site" not in outcomes(diagnose(lab.with_rows({}), "tail-latency", argv=()))
    assert "hang" in symptoms.names()


def test_a_check_that_breaks_is_an_error_and_the_others_run(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site("tail-latency", [Check("tail.broken", "Broken", True, 1, failing)], monkeypatch)
    found = diagnose(lab.run(traffic=lab.Traffic(requests=40)), "tail-latency", argv=())
    broken = next(check for check in found.checks if check.id == "tail.broken")
    assert (broken.outcome, broken.summary) == ("error", "LookupError: no such column")
    assert outcomes(found)["tail.queueing"] == "pass"
    assert (found.verdict, found.invocation.exit_code) == ("error", 1)


def test_a_playbook_that_does_not_load_is_reported(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise ImportError("no module our_site")

    site("tail-latency", gone, monkeypatch)
    found = diagnose(lab.with_rows({}), "tail-latency", argv=())
    assert "our_site" in next(check.summary for check in found.checks if check.id == "playbook")


def test_diagnose_does_not_import_torch_or_pandas() -> None:
    code = (
        "import sys, playbooks.runner, playbooks.remedy; print([m for m in ('torch', 'pandas', 'textual', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
