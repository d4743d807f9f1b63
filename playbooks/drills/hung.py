"""Starts the ranks of a small gloo job of which one misbehaves, waits until nothing moves, and makes a run of what can be seen then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from playbooks.drills.undisturbed import undisturbed
from playbooks.hang.processes import write
from probes.fabric.launch import Within, free_port, rank_environment
from probes.foreign import importing
from probes.process_states import process_states
from runtime.child import PARENT
from traces.errors import Unreachable
from traces.run import Run, create_run
from traces.store import write_rows

MOVING = 2  # steps that every rank has made before a hand interferes
LONGEST = 120.0  # seconds for a job to come to rest
DUMP = "gloo_trace_rank_"


@dataclass(frozen=True, slots=True)
class Job:
    """`conduct` of each rank (see probes/fabric/job.py). `within` runs an argv on its host; `address` is the first rank's. `more` are
    variables of one rank. `interfere` is called with the processes once all of them move.
    """

    conduct: Sequence[str]
    within: Sequence[Within] = ()
    address: str = "127.0.0.1"
    more: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    interfere: Callable[[list[subprocess.Popen[bytes]]], None] = lambda ranks: None
    silent: tuple[int, ...] = ()  # ranks that cannot dump


def produce(job: Job, root: Path) -> Run:
    """The run: dumps, states and stacks of the processes, and environments. Raises Unreachable when the job does not come to rest."""
    with tempfile.TemporaryDirectory(prefix="wb-hung-") as name:
        folder = Path(name)
        with _started(job, folder) as ranks:
            _until(ranks, lambda: all(_steps(folder, rank) >= MOVING for rank in range(len(ranks))))
            job.interfere(ranks)
            dumping = [rank for rank in range(len(ranks)) if rank not in job.silent]
            _until(ranks, lambda: all((folder / f"{DUMP}{rank}").exists() for rank in dumping))
            states = process_states({number: rank.pid for number, rank in enumerate(ranks)})
        dumps = sorted(folder.glob(f"{DUMP}*"))
        facts = {f"rank{n}": json.loads((folder / f"facts_{n}.json").read_text()) for n in range(len(job.conduct))}
        run = create_run(engine="job", model="collectives", root=root, world_size=len(job.conduct), fingerprints=facts)
        for table, values in importing.read(dumps)[0].items():
            write_rows(run, table, values, producer="import")
        write(run, states)
        run.update(state="closed")
        return run


@contextmanager
def _started(job: Job, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    port = free_port()
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank, conduct in enumerate(job.conduct):
            variables = rank_environment(rank, len(job.conduct), job.address, port, job.more.get(rank, {}))
            argv = [sys.executable, "-m", "probes.fabric.job", str(folder), conduct]
            command = job.within[rank](argv) if job.within else argv
            ranks.append(
                subprocess.Popen(
                    command,
                    env={**variables, PARENT: str(os.getpid())},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            )
        yield ranks
    finally:
        with undisturbed():
            for process in ranks:
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the session is its own
    process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _until(ranks: list[subprocess.Popen[bytes]], met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST
    while not met():
        for number, process in enumerate(ranks):
            if process.poll() is not None:
                said = (process.stderr.read() if process.stderr else b"").decode(errors="replace").strip().splitlines()
                raise Unreachable(f"rank {number} of the drill's job ended with code {process.returncode}", said[-1] if said else "")
        if time.monotonic() > deadline:
            raise Unreachable("the drill's job did not come to rest", f"within {LONGEST:g} s")
        time.sleep(0.05)


def _steps(folder: Path, rank: int) -> int:
    try:
        return int((folder / f"step_{rank}").read_text() or 0)
    except FileNotFoundError:
        return 0
