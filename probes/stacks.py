"""Python stacks of another process, by `py-spy dump`: what every thread is doing now, without its cooperation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes import ptrace
from probes.procfile import read_text
from probes.sink import Sink
from traces import schema
from traces.errors import WorkbenchError

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk",
    "T": "stopped",
    "t": "being traced",
    "Z": "dead (zombie)",
    "X": "dead",
}


class StackError(WorkbenchError):
    """The stacks of a process cannot be read."""


class NotPermitted(StackError):
    """The kernel does not let us look into the process."""


class ProcessGone(StackError):
    """There is no such process any more."""


@dataclass(frozen=True, slots=True)
class StackSample:
    """One thread. `frames` are outermost first, each `function (file:line)`; `active` means on a CPU or about to be."""

    ts: int
    thread: str
    thread_id: int
    active: bool
    owns_gil: bool
    frames: tuple[str, ...]


def process_state(pid: int) -> str | None:
    """State letter of /proc/PID/stat (R, S, D, T, Z ...), or None when there is no such process."""
    text = read_text(f"/proc/{pid}/stat")
    return text.rpartition(")")[2].split()[0] if text else None


def sample_stacks(pid: int, *, nonblocking: bool | None = None, native: bool = False, timeout: float = 10.0) -> list[StackSample]:
    """All threads of a Python process, as they stand now; the process pauses for about 20 ms.

    `nonblocking` does not pause it and may see torn frames; None means only where pausing is impossible, in a stopped process.
    Raises ProcessGone, NotPermitted or StackError, each with what to do.
    """
    state = process_state(pid)
    if state in (None, "Z", "X"):
        raise ProcessGone(f"process {pid} is gone", "it ended or was killed: look at its log and at table `event` for its death")
    if not ptrace.same_user(pid) and not ptrace.rights().capable:
        raise _forbidden(pid)
    command = [_binary(), "dump", "--json", "--pid", str(pid)]
    if nonblocking or (nonblocking is None and state == "T"):
        command.append("--nonblocking")  # with --native impossible: py-spy refuses the pair
    elif native:
        command.append("--native")
    ts = time.time_ns()
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise StackError(f"py-spy did not answer within {timeout:g} s for process {pid}", "try again with nonblocking") from error
    if answer.returncode != 0:
        raise _explained(pid, answer.stderr)
    return [_sample(ts, thread) for thread in json.loads(answer.stdout)]


def record_stacks(recorder: Sink, pid: int, rank: int | None = None, *, nonblocking: bool | None = None) -> list[StackSample]:
    """Sample and write one row of table `stack` for each thread."""
    samples = sample_stacks(pid, nonblocking=nonblocking)
    for sample in samples:
        recorder.row(schema.STACK, ts=sample.ts, rank=rank, thread=sample.thread, frames=list(sample.frames))
    return samples


def _binary() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if found is None:
        raise StackError("py-spy is not installed, or not where this user may run it", "pip install py-spy")
    return found


def _sample(ts: int, thread: dict[str, Any]) -> StackSample:
    frames = [f"{frame['name']} ({frame['short_filename'] or frame['filename']}:{frame['line']})" for frame in reversed(thread["frames"])]
    name = thread["thread_name"] or f"thread {thread['thread_id']:#x}"
    return StackSample(ts, name, thread["os_thread_id"] or thread["thread_id"], thread["active"], thread["owns_gil"], tuple(frames))


def _forbidden(pid: int) -> NotPermitted:
    rights = ptrace.rights()
    return NotPermitted(f"not permitted to read the stacks of process {pid}: {rights.describe()}", rights.remedy())


def _explained(pid: int, stderr: str) -> StackError:
    """py-spy 0.4 says `Permission Denied` or `Operation not permitted`, `No such process`, or why it is no Python process."""
    said = stderr.split("\n\nStack backtrace")[0].strip()
    if "ermission" in said or "not permitted" in said:
        return _forbidden(pid)
    if process_state(pid) in (None, "Z", "X"):
        return ProcessGone(f"process {pid} ended while its stacks were read", "look at its log")
    if "python version" in said:
        return StackError(
            f"process {pid} is not a Python process that py-spy knows", "give the pid of the Python process itself, not of its shell"
        )
    state = STATES.get(process_state(pid) or "", "unknown")
    return StackError(f"py-spy could not read process {pid} (state: {state}): {' '.join(said.split())}", "try again with nonblocking")
