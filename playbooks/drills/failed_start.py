"""Starts of real torch processes that come to nothing, and the run made of what is left of one: its logs, and the ranks' environments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from playbooks.drills import shared_memory
from playbooks.drills.undisturbed import undisturbed
from probes.fabric.launch import free_port, rank_environment
from probes.foreign.log_rows import run_of_logs
from runtime.child import PARENT
from traces.errors import Unreachable
from traces.run import Run

LONGEST = 120.0  # seconds until every process has ended
FOLDER = "FOLDER"
PROGRAM = "probes.fabric.starting"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Start:
    """Processes by name: argv after the interpreter (FOLDER stands for the folder of facts), and variables."""

    processes: Mapping[str, tuple[Sequence[str], Mapping[str, str]]]
    shared_mib: int | None = None  # of /dev/shm; the machine's own where null


def ranks_that_meet(world: int, changed: Mapping[int, Mapping[str, str] | None]) -> Start:
    """Ranks that look for one another on the loopback. `changed`: variables of a rank, or None where it never starts."""
    port = free_port()
    processes = {}
    for rank in range(world):
        more = changed.get(rank, {})
        if more is not None:
            processes[f"rank{rank}"] = (("-m", PROGRAM, FOLDER, "meet"), {**rank_environment(rank, world, "127.0.0.1", port, {}), **more})
    return Start(processes)


def launched(what: str, shared_mib: int) -> Start:
    """Two ranks by torchrun with so little shared memory."""
    argv = (*TORCHRUN, "--master-port", str(free_port()), "-m", PROGRAM, FOLDER, what)
    return Start({"torchrun": (argv, rank_environment(0, 2, "127.0.0.1", 0, {}))}, shared_mib)


def produce(start: Start, root: Path) -> Run:
    """The run, once all processes have ended. Raises Unreachable when one does not, or when nothing was said."""
    with tempfile.TemporaryDirectory(prefix="wb-start-") as name:
        folder = Path(name)
        running = []
        try:
            for label, (argv, environment) in start.processes.items():
                command = [sys.executable, *(name if word == FOLDER else word for word in argv)]
                if start.shared_mib is not None:
                    command = [*shared_memory.command(start.shared_mib << 20), *command]
                with (folder / f"{label}.log").open("wb") as log:
                    variables = {**environment, PARENT: str(os.getpid())}
                    running.append(
                        subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
                    )
            deadline = time.monotonic() + LONGEST
            for process in running:
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired as error:
                    raise Unreachable("a process of the drill's start did not end", f"within {LONGEST:g} s") from error
        finally:
            with undisturbed():
                for process in running:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)  # the session is its own
                    process.wait()
        facts = {path.stem.replace("facts_", "rank"): json.loads(path.read_text()) for path in sorted(folder.glob("facts_*.json"))}
        return run_of_logs(sorted(folder.glob("*.log")), root, facts)
