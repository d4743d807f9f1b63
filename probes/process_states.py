"""How the processes of ranks are doing right now: their state in the kernel, and the Python stacks of those that can be read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from probes.procfile import read_text
from probes.stacks import STATES, StackError, StackSample, process_state, sample_stacks

GONE = "gone"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """`state` is a word of STATES or `gone`; `kernel` is where it sleeps in the kernel, where that is told. No stacks: `why` says why."""

    rank: int
    ts: int
    pid: int
    state: str
    kernel: str
    stacks: tuple[StackSample, ...]
    why: str = ""


def process_states(pids: Mapping[int, int]) -> list[ProcessState]:
    """rank -> pid. Every process that runs pauses for about 20 ms; a stopped one is read without."""
    return [_state(rank, pid) for rank, pid in sorted(pids.items())]


def _state(rank: int, pid: int) -> ProcessState:
    ts, letter = time.time_ns(), process_state(pid)
    if letter in (None, "Z", "X"):
        return ProcessState(rank, ts, pid, GONE, "", ())
    state, kernel = STATES.get(letter or "", letter or ""), (read_text(f"/proc/{pid}/wchan") or "").strip()
    try:
        return ProcessState(rank, ts, pid, state, kernel, tuple(sample_stacks(pid)))
    except StackError as error:
        return ProcessState(rank, ts, pid, state, kernel, (), str(error))
