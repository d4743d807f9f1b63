"""States and stacks of the ranks' processes: as recorded with a run, or taken now from a live run of this host."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass

from playbooks.case import Case
from probes.process_states import ProcessState, process_states
from traces import schema
from traces.run import Run
from traces.store import write_rows

KIND = "process"
# Frames inside which a rank waits for its peers.
WAITING = re.compile(r"[(/](distributed_c10d|c10d_logger|parallel|boundary)\.py:")


@dataclass(frozen=True, slots=True)
class Process:
    """`frames` are those of its working thread, outermost first: of the one that is in a collective, else of the first that works;
    they were read at `ts`.
    """

    rank: int
    state: str
    kernel: str
    frames: tuple[str, ...]
    ts: int

    @property
    def waits(self) -> bool:
        """It is inside a collective."""
        return any(WAITING.search(frame) for frame in self.frames)


def processes(case: Case) -> list[Process]:
    """Empty when nothing was recorded and nothing can be read."""
    if KIND not in case.memo:
        case.memo[KIND] = _recorded(case) or _now(case)
    found: list[Process] = case.memo[KIND]
    return found


def write(run: Run, states: list[ProcessState]) -> None:
    """Rows of `event` and `stack`."""
    events = [
        (
            one.ts,
            0,
            f"rank{one.rank}",
            one.rank,
            KIND,
            json.dumps({"pid": one.pid, "state": one.state, "kernel": one.kernel, "why": one.why}),
        )
        for one in states
    ]
    write_rows(run, schema.EVENT, events, producer="processes")
    stacks = [(one.ts, f"rank{one.rank}", one.rank, stack.thread, list(stack.frames)) for one in states for stack in one.stacks]
    write_rows(run, schema.STACK, stacks, producer="stacks")


def _recorded(case: Case) -> list[Process]:
    """The last moment that was recorded of each rank."""
    rows = case.store.rows(
        f"SELECT rank, max(ts) AS ts, arg_max(attrs->>'state', ts) AS state, arg_max(attrs->>'kernel', ts) AS kernel FROM event "
        f"WHERE kind = '{KIND}' GROUP BY rank ORDER BY rank",
        limit=None,
    )
    found = []
    for row in rows:
        stacks = case.store.rows("SELECT frames FROM stack WHERE rank = ? AND ts >= ? ORDER BY ts", [row["rank"], row["ts"]])
        frames = _working([tuple(stack["frames"]) for stack in stacks])
        found.append(Process(row["rank"], row["state"], row["kernel"], frames, row["ts"]))
    return found


def _now(case: Case) -> list[Process]:
    if not case.store.live:
        return []
    rows = case.store.rows(
        "SELECT rank, pid, host FROM resource WHERE role = 'rank' AND rank IS NOT NULL AND pid > 0 ORDER BY rank", limit=None
    )
    mine = {int(row["rank"]): int(row["pid"]) for row in rows if row["host"] == socket.gethostname()}
    states = process_states(mine)
    return [Process(one.rank, one.state, one.kernel, _working([stack.frames for stack in one.stacks]), one.ts) for one in states]


def _working(stacks: list[tuple[str, ...]]) -> tuple[str, ...]:
    inside = [frames for frames in stacks if any(WAITING.search(frame) for frame in frames)]
    return (inside or stacks or [()])[0]
