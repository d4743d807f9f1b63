"""The playbook's states, and what stands in its panels."""

from __future__ import annotations

from threading import Event

import msgspec
import pytest

from playbooks.document import (
    Applied,
    CheckRecord,
    Confidence,
    Diagnosis,
    Evidence,
    Finding,
    Impact,
    Invocation,
    Remedy,
    RunFacts,
    Subject,
    Tool,
    Window,
)  # fmt: skip
from playbooks.runner import CheckEvent
from workbench.tui import finding_text
from workbench.tui.diagnosis import Playbook, Step
from workbench.tui.screens.playbook import PlaybookScreen

RECORD = CheckRecord(
    id="tail.expert-imbalance", mandatory=True, outcome="fail", observed=0.31, threshold=0.05, unit="share of step time", seconds=0.359,
    summary="layer 0: rank 2 has the most rows",
)  # fmt: skip
MEASURED = Evidence(
    kind="sql", source="store", query="SELECT 1 AS [x]", observed=2.0, expected=1.48, unit="max/mean", note="rows [per] rank"
)
FINDING = Finding(
    id="tail.expert-imbalance", fingerprint="ab" * 8, severity="error", confidence=Confidence(score=0.95, basis="established"),
    title="Expert load is uneven", summary="Rank 2 computes twice the mean.", window=Window(t0=0, t1=1), evidence=(MEASURED,),
    subject=Subject(kind="rank", id="2", labels={"experts": [8, 9]}),
    impact=Impact(metric="step time", value=24.0, unit="ms", share=0.3, alone=20.5),
    remedy=(Remedy(text="Move experts", command="workbench diagnose tail-latency --apply", risk="low", automatic=True),),
)  # fmt: skip
CHECKS = (("env.drift", "Environments that differ"), ("tail.expert-imbalance", "Expert load uneven over ranks"))


def found(**changes):
    whole = Diagnosis(
        tool=Tool(version="0"), invocation=Invocation(argv=(), started=0, ended=9, exit_code=3), symptom="tail-latency", verdict="problem",
        run=RunFacts(id="r", engine="workbench", model="m", world_size=4), checks=(RECORD,), findings=(FINDING,),
    )  # fmt: skip
    return msgspec.structs.replace(whole, **changes)


@pytest.fixture
def running():
    playbook = Playbook().ready("tail-latency", "Some requests take much longer", CHECKS).begin()
    return playbook.seen(CheckEvent("started", "tail.expert-imbalance", "Expert load uneven over ranks", 1, 2))


def test_checks_stream_in_and_the_one_that_runs_is_looked_at(running):
    assert [step.status for step in running.steps] == ["waiting", "running"]
    assert running.busy and running.current == 1
    assert "check 1 of 2" in finding_text.verdict(running).plain
    done = running.seen(CheckEvent("finished", "tail.expert-imbalance", "Expert load uneven over ranks", 1, 2, RECORD, (FINDING,)))
    assert done.steps[1].status == "fail" and done.current == 1
    assert finding_text.step_line(done.steps[1], 46).plain == "✖ fail    Expert load uneven over ran…  359 ms"


def test_a_step_line_never_wraps_and_its_time_is_at_the_edge(running):
    for width in (30, 46, 90):
        for step in (*running.steps, Step("x", "x" * 200, "pass", RECORD)):
            assert len(finding_text.step_line(step, width).plain) == width


def test_evidence_gives_the_number_its_bound_and_the_query(running):
    text = finding_text.evidence(Step("tail.expert-imbalance", "Expert load uneven", "fail", RECORD, (FINDING,))).plain
    assert "observed  0.31 share of step time" in text and "threshold 0.05 share of step time" in text
    assert "2 max/mean   expected 1.48" in text
    assert "sql SELECT 1 AS [x]" in text and "rows [per] rank" in text  # brackets are not markup


def test_the_finding_says_what_where_how_sure_and_what_to_do(running):
    text = finding_text.findings(running.finished(found()), 90, live=True).plain
    for words in ("Expert load is uneven", "error, established 0.95", "rank 2 (experts 8 9)", "step time 24 ms, 30 % of it",
                  "fixed alone it gives back 20.5 ms", "Move experts", "press a to apply"):  # fmt: skip
        assert words in text
    assert "press a" not in finding_text.findings(running.finished(found()), 90, live=False).plain


def test_what_a_remedy_changed_stands_before_and_after():
    applied = Applied(
        remedy="Move experts", finding="tail.expert-imbalance", before={"placement": 1, "imbalance": 2.0},
        after={"placement": 2, "imbalance": 1.1}, verdict="improved", answers_equal=True,
    )  # fmt: skip
    playbook = Playbook().loaded(found(applied=(applied,)))
    assert "✖ problem  →  ✔ improved by the remedy" in finding_text.verdict(playbook).plain
    text = finding_text.findings(playbook, 90, live=True).plain
    lines = [line.split() for line in text.splitlines()]
    assert ["imbalance", "2", "1.1", "-45%"] in lines and ["placement", "1", "2"] in lines
    assert "greedy answers are equal before and after" in text
    assert "press a" not in text


def test_stopping_and_failing_leave_no_check_running(running):
    assert [step.status for step in running.stopped("by you").steps] == ["stopped", "stopped"]
    assert finding_text.verdict(running.stopped("by you")).plain == "□ stopped by you"
    assert "no such run" in finding_text.verdict(running.stopped("no such run", failed=True)).plain
    kept = running.finished(found()).applying("measuring").not_applied("the server is gone")
    assert kept.phase == "done" and kept.found is not None and "the server is gone" in finding_text.verdict(kept).plain


def test_a_person_stops_a_playbook_between_two_checks(app, drive, keys, reading, monkeypatch):
    """The checks of this run take half a second together: the second one is held until the key was pressed, then told as ever."""
    pressed, told, tell = Event(), [], PlaybookScreen._on_step

    def held(screen, event):
        told.append((event.check, event.state))
        if len(told) == 4:
            assert pressed.wait(30)
        tell(screen, event)

    monkeypatch.setattr(PlaybookScreen, "_on_step", held)

    async def scenario(pilot):
        await keys(pilot, "3")
        await pilot.press("d")
        while len(told) < 4:
            await pilot.pause(0.05)
        await pilot.press("x")
        pressed.set()
        for _ in range(200):
            if "□ stopped by you" in reading(pilot):
                break
            await pilot.pause(0.05)
        assert "□ stopped by you" in reading(pilot)
        assert len(told) == 4, "no check runs after the one in progress"

    drive(app, scenario)


def test_a_recorded_run_cannot_be_repaired(app, drive, keys, reading):
    async def scenario(pilot):
        await keys(pilot, "d")
        await keys(pilot, "a")
        for _ in range(100):
            if "a remedy needs a live run" in reading(pilot):
                return
            await pilot.pause(0.1)
        pytest.fail(reading(pilot))

    drive(app, scenario)
