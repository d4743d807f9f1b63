"""Scores of drills, the copy without labels, pressure on processes, and (slow: all) real drills."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from playbooks.drills import pressure
from playbooks.drills.document import DrillResult
from playbooks.drills.drill import HEALTHY, Dose, Truth
from playbooks.drills.score import is_located, macro_f1, report, wilson
from playbooks.drills.session import chosen, doses, drills_of
from playbooks.drills.strip import stripped
from playbooks.runner import diagnose
from playbooks.symptoms import symptom
from traces.database import connect
from traces.errors import UsageError
from traces.run import Run
from traces.store import open_run, write_document

ROOT = Path(__file__).parents[2]


def test_wilson_gives_the_published_interval() -> None:
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29, without continuity correction
    for right, total, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)):
        assert wilson(right, total) == pytest.approx((low, high), abs=5e-5)
    with pytest.raises(ValueError, match="no trials"):
        wilson(0, 0)


def test_macro_f1_weighs_classes_alike() -> None:
    expected = ["a"] * 8 + ["b"] * 2
    assert macro_f1(expected, expected) == 1.0
    assert macro_f1(expected, ["a"] * 10) == pytest.approx((16 / 18 + 0.0) / 2)


def result(expected: str, first: str | None, located: bool | None = None) -> DrillResult:
    right = first == (None if expected == HEALTHY else expected)
    return DrillResult(
        id="x", seed=0, strength="", expected=expected, verdict="problem" if first else "healthy", first=first, correct=right,
        located=located, unlabelled=True, seconds=0.5,
    )  # fmt: skip


def test_a_report_counts_alarms_and_abstentions() -> None:
    made = report(
        "tail-latency",
        [
            result("tail.a", "tail.a", True),
            result("tail.a", "tail.b", False),
            result("tail.b", None),
            result(HEALTHY, None),
            result(HEALTHY, "tail.a"),
        ],
    )
    assert (made.faults, made.controls, made.false_alarms, made.abstentions) == (3, 2, 1, 1)
    assert made.accuracy_at_1 == pytest.approx(1 / 3)
    assert made.located_share == 0.5
    assert made.interval == wilson(1, 3)
    assert made.macro_f1 is not None and not math.isnan(made.macro_f1)


def test_the_place_must_be_named(lab: Any) -> None:
    run = lab.run(lab.Fault(packed=1.0, where=1), traffic=lab.Traffic(rate=8, prompt=500, answer=4, requests=70))
    first = diagnose(run, "tail-latency", argv=()).findings[0]
    hot = {layer: tuple(lab.engine.hot_experts(layer)) for layer in range(4)}
    assert is_located(Truth((1,), (0, 1, 2, 3), hot), first) is True
    assert is_located(Truth((2,), (0, 1, 2, 3), hot), first) is False
    assert is_located(Truth(), first) is None


def test_every_drill_expects_a_check_that_exists() -> None:
    known = {check.id for check in symptom("tail-latency")[0].checks} | {HEALTHY}
    drills = drills_of("tail-latency")
    assert {drill.expected for drill in drills} <= known
    assert len({drill.id for drill in drills}) == len(drills)
    assert sum(drill.expected == HEALTHY for drill in drills) >= 2


def test_doses_are_the_strongest_ones() -> None:
    drill = next(drill for drill in drills_of("tail-latency") if len(drill.doses) == 2)
    assert doses(drill, 2, 1) == [Dose(1, 0), Dose(1, 1)]
    assert len(doses(drill, 3, 2)) == 6


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="no drill 'nonsense'"):
        chosen("tail-latency", ["nonsense"])
    with pytest.raises(UsageError, match="no drills for 'headache'"):
        drills_of("headache")


def label(run: Run, secret: str) -> tuple[str, ...]:
    """Puts the secret wherever a server or a client might name what is being done. The tables."""
    with connect(run.database) as store:
        for kind in ("traffic", "config", "window", "rebalance"):
            values = {"ts": time.time_ns(), "kind": kind, "attrs": json.dumps({"note": secret})}
            store.execute("INSERT INTO event (ts, dur, resource_id, kind, attrs) VALUES ($ts, 0, 'api', $kind, $attrs)", values)
        store.execute("UPDATE placement SET reason = ?", [secret])
        store.execute("UPDATE resource SET attrs = ?", [json.dumps({"note": secret})])
    return ("event", "placement", "resource", "document")


def test_the_copy_has_no_labels_and_the_same_verdict(lab: Any, tmp_path: Path) -> None:
    run = lab.run(lab.Fault(packed=1.0, where=1), traffic=lab.Traffic(rate=8, prompt=500, answer=4, requests=70))
    secret = "drill-secret-17"
    facts = {"env": {"PYTHONPATH": secret, "RANK": "0"}, "argv": [secret], "env.WORKBENCH_DRILL_LEAK": secret}
    run.update(command=["serve", secret], config={"placement": secret}, notes={"drill": secret}, fingerprints={"rank0": facts})
    write_document(run, "workbench.test.v1", {"drill": secret})
    labelled = label(run, secret)
    before = diagnose(run, "tail-latency", argv=())
    copy = stripped(run, tmp_path / "copies")
    after = diagnose(copy, "tail-latency", argv=())
    assert secret not in (copy.path / "run.json").read_text()
    with open_run(run) as store:
        for table in labelled:
            assert secret in json.dumps(store.rows(f"SELECT * FROM {table}"), default=str), f"{table} holds no label to remove"
    with open_run(copy) as store:
        for table in ("event", "placement", "span", "resource", "document", "log"):
            assert secret not in json.dumps(store.rows(f"SELECT * FROM {table}"), default=str)
        assert store.rows("SELECT count(*) AS n FROM layer") == open_run(run).rows("SELECT count(*) AS n FROM layer")
    assert (before.verdict, [one.fingerprint for one in before.findings]) == (after.verdict, [one.fingerprint for one in after.findings])


def burner() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


def test_an_interrupted_process_is_stopped_and_continued() -> None:
    process = burner()
    try:
        seen = set()
        with pressure.interrupted(process.pid, 20, 20):
            for _ in range(60):
                seen.add(psutil.Process(process.pid).status())
                time.sleep(0.005)
        assert psutil.STATUS_STOPPED in seen and seen - {psutil.STATUS_STOPPED}
        assert psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
    finally:
        process.kill()
        process.wait()


def test_busy_processes_are_gone_afterwards() -> None:
    before = set(psutil.Process().children())
    with pressure.busy(2):
        burning = set(psutil.Process().children()) - before
        assert len(burning) == 2 and all(child.is_running() for child in burning)
    assert not any(child.is_running() for child in burning)


def test_the_list_is_machine_readable() -> None:
    from workbench.cli.drill import drill

    shown = CliRunner().invoke(drill, ["list", "tail-latency", "--json"])
    listed = json.loads(shown.stdout)
    assert listed["schema"] == "workbench.drill-list.v1"
    assert {one["id"] for one in listed["drills"]} == {one.id for one in drills_of("tail-latency")}


def run_drills(tmp_path: Path, *options: str) -> dict[str, Any]:
    environment = os.environ | {"WORKBENCH_RUNS": str(tmp_path / "runs"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "workbench", "drill", "run", "tail-latency", *options, "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=3600, check=False)
    assert done.stdout, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, json.dumps(found, indent=1) + done.stderr[-3000:]
    return found


@pytest.mark.timeout(300)
def test_one_fault_and_one_control(tmp_path: Path) -> None:
    found = run_drills(tmp_path, "--id", "stopped-rank", "--id", "healthy-prompts", "--strengths", "1")
    assert found["schema"] == "workbench.drill.v1"
    assert (found["accuracy_at_1"], found["located_share"], found["false_alarms"], found["abstentions"]) == (1.0, 1.0, 0, 0)
    assert all(one["unlabelled"] for one in found["drills"])
    assert found["slowest_seconds"] < 15
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_drills(tmp_path: Path) -> None:
    found = run_drills(tmp_path, "--seeds", "3")
    assert found["accuracy_at_1"] >= 0.9
    assert found["located_share"] >= 0.95
    assert found["false_alarms"] == 0
