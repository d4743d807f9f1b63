"""Ctrl-C and SIGTERM at different stages of the demonstration: exit code 130, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0  # seconds until a stage is reached on a crowded machine
GONE = 60.0


def processes_of(runs: Path) -> list[str]:
    """Command lines of all processes that were started for this folder of runs, found by their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"WORKBENCH_RUNS={runs}\0".encode() in (folder / "environ").read_bytes() + b"\0":
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("Checking this installation", signal.SIGINT),
        ("Serving the shipped model", signal.SIGTERM),
        ("Warming up", signal.SIGINT),
        ("Traffic, before", signal.SIGTERM),
    ],
)
def test_nothing_is_left(stage: str, number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    runs = tmp_path / "runs"
    with log.open("w") as stderr:
        demo = subprocess.Popen(
            [sys.executable, "-m", "workbench", "demo", "--ranks", "2", "--json"], cwd=ROOT, start_new_session=True, text=True,
            env=os.environ | {"WORKBENCH_RUNS": str(runs)}, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while stage not in log.read_text() and time.monotonic() < deadline and demo.poll() is None:
            time.sleep(0.1)
        assert stage in log.read_text()
        time.sleep(1.5)  # into the stage, not at its edge
        assert demo.poll() is None, log.read_text()
        demo.send_signal(number)
        out, _ = demo.communicate(timeout=GONE)
    assert demo.returncode == 130, log.read_text()
    assert out == ""
    assert "Traceback" not in log.read_text()
    deadline = time.monotonic() + GONE
    while processes_of(runs) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_of(runs) == []
