"""The report of a run, written by `workbench report` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from traces.errors import WorkbenchError

if TYPE_CHECKING:
    from traces.run import Run

_PATIENCE = 300.0  # seconds


class ExportFailed(WorkbenchError):
    """The report was not written; the message is what the command said last."""


def report(run: Run) -> str:
    """Path of the page. Raises ExportFailed."""
    command = [sys.executable, "-m", "workbench", "report", "--run", str(run.path), "--json"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise ExportFailed(f"`workbench report` took longer than {_PATIENCE:.0f} s") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise ExportFailed(said[0] if said else f"`workbench report` ended with {done.returncode}")
    return str(json.loads(done.stdout)["path"])
