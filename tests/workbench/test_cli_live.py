"""Commands that start something: a server, a collector; and the commands that speak to them while they live."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from traces.producer import Recorder
from traces.run import Run

ROOT = Path(__file__).parents[2]


def environment(runs: Path) -> dict[str, str]:
    return os.environ | {"WORKBENCH_RUNS": str(runs)}


def start(runs: Path, *argv: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Starts a command that stays, and reads the object it prints once it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", *argv, "--json"], cwd=ROOT, env=environment(runs), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=(runs / "stderr").open("w"),
    )  # fmt: skip
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.rstrip("\n") == "}":
            return process, json.loads("".join(lines))
    raise AssertionError((runs / "stderr").read_text())


def command(runs: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workbench", *argv], cwd=ROOT, env=environment(runs), capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    runs = tmp_path_factory.mktemp("live")
    process, ready = start(runs, "serve", "shapes", "--ep", "2", "--port", "0", "--detail-every", "1")
    yield runs, ready
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0, (runs / "stderr").read_text()
    assert Run(Path(ready["path"])).state == "closed"


def test_ready_object(served: tuple[Path, dict[str, Any]]) -> None:
    _, ready = served
    assert ready["schema"] == "workbench.ready.v1"
    assert ready["ranks"] == 2
    assert ready["url"].startswith("http://127.0.0.1:")


def test_traffic_is_recorded_into_the_run_that_serves(served: tuple[Path, dict[str, Any]]) -> None:
    runs, ready = served
    done = command(runs, "traffic", ready["url"], "--requests", "12", "--concurrency", "4", "--phase", "first", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "workbench.traffic.v1"
    assert document["summary"]["ok"] == 12
    asked = command(runs, "query", "SELECT count(*) AS n FROM client_request WHERE phase = 'first'", "--json")
    assert json.loads(asked.stdout)["rows"] == [{"n": 12}]
    joined = command(runs, "query", "SELECT count(*) AS n FROM client_request JOIN request USING (trace_id)", "--json")
    assert json.loads(joined.stdout)["rows"] == [{"n": 12}]


def test_traffic_as_text(served: tuple[Path, dict[str, Any]]) -> None:
    runs, ready = served
    done = command(runs, "traffic", ready["url"], "--requests", "4", "--mix", "prefill-heavy", "--turns", "4")
    assert done.returncode == 0, done.stderr
    assert "4 requests, 4 ok, 0 failed, 0 cancelled" in done.stdout
    assert "undetermined" in done.stdout  # no p99 of four requests


def test_interrupted_traffic_keeps_what_was_measured(served: tuple[Path, dict[str, Any]]) -> None:
    runs, ready = served
    argv = ["traffic", ready["url"], "--duration", "100", "--concurrency", "2", "--phase", "cut", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", *argv], cwd=ROOT, env=environment(runs), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(8)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["ended"] == "cancelled"
    assert json.loads(out)["summary"]["ok"] > 0


def test_ranks_have_equal_environments(served: tuple[Path, dict[str, Any]]) -> None:
    runs, ready = served
    done = command(runs, "fingerprint", "--diff", f"{ready['run']}:0", f"{ready['run']}:1", "--json")
    assert json.loads(done.stdout)["differences"] == []


def test_a_live_run_is_listed_and_reported(served: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    runs, ready = served
    listed = json.loads(command(runs, "runs", "--json").stdout)["runs"]
    assert [(one["id"], one["state"]) for one in listed] == [(ready["run"], "running")]
    done = command(runs, "report", "--output", str(tmp_path / "page.html"))
    assert done.returncode == 0, done.stderr
    assert "still live" in (tmp_path / "page.html").read_text()


def test_a_port_that_is_taken(served: tuple[Path, dict[str, Any]]) -> None:
    runs, ready = served
    port = ready["url"].rpartition(":")[2]
    done = command(runs, "serve", "shapes", "--port", port)
    assert done.returncode == 2
    assert port in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_collect_takes_rows_and_closes(tmp_path: Path) -> None:
    process, ready = start(tmp_path, "collect")
    assert ready["schema"] == "workbench.collect.v1"
    recorder = Recorder.open(Run(Path(ready["path"])), "someone")
    recorder.event("config", note="hello")
    assert recorder.flush(20)
    asked = command(tmp_path, "query", "SELECT count(*) AS n FROM event WHERE kind = 'config'", "--json")
    assert json.loads(asked.stdout)["rows"] == [{"n": 1}]
    second = command(tmp_path, "collect", "--run", ready["run"])
    assert second.returncode in (1, 2)
    assert "Traceback" not in second.stderr
    recorder.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert Run(Path(ready["path"])).state == "closed"
