"""Drills about starting a server: a real checkpoint, real ranks, a real limit, a loader that is set wrongly; and the run that is left."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from playbooks.drills import shared_memory
from playbooks.drills.checkpoint import config_of, write_checkpoint
from playbooks.drills.drill import Dose, Drill
from playbooks.drills.undisturbed import undisturbed
from playbooks.drills.variables import variables
from probes.memory import resident
from probes.procfile import read_text
from runtime.load_variable import LOAD_STYLE
from runtime.serve_config import ServeConfig
from runtime.server_process import start_server
from traces.errors import UsageError, WorkbenchError
from traces.run import Run, list_runs
from traces.store import open_run

AFTER_LOADING = 2.5  # seconds: samples of the memory that stays
POLL = 0.002  # seconds; a load grows by a few MiB in that time
RANK = "wb-rank"


@dataclass(frozen=True, slots=True)
class Limit:
    """`rise`: a watcher kills a rank whose anonymous memory rises by more. `data`: RLIMIT_DATA above what a rank has when it starts.
    `shared`: size of the /dev/shm that the server has for itself."""

    rise: int | None = None
    data: int | None = None
    shared: int | None = None


@dataclass(frozen=True, slots=True)
class StartDrill:
    """`expected`: the finding that must come first, or HEALTHY.

    `weights`: bytes of experts for a dose. `limit` of a rank for the bytes of all weights and a strength. `cold`: the files' pages leave
    the page cache before the start.
    """

    id: str
    expected: str
    title: str
    weights: Callable[[Dose], int]
    limit: Callable[[int, int], Limit] = lambda weights, strength: Limit()
    style: str = "stream"
    settings: dict[str, Any] = field(default_factory=dict)
    cold: bool = False
    unavailable: Callable[[], str] = lambda: ""

    def start(self, dose: Dose, root: Path, say: Callable[[str], None]) -> Run:
        """One server, and the run it left."""
        say("starting the server")
        settings = {"dtype": "bfloat16", "kv_blocks": 64, "max_model_len": 512, **self.settings}
        with tempfile.TemporaryDirectory(prefix="wb-model-") as folder:
            model = write_checkpoint(Path(folder) / "model", config_of(self.weights(dose)), dose.seed)
            files = list(model.glob("*.safetensors"))
            for path in files if self.cold else ():
                drop_pages(path)
            limit = self.limit(sum(path.stat().st_size for path in files), dose.strength)
            return serve_once(root, model, limit, {LOAD_STYLE: self.style}, **settings)

    def drill(self, doses: tuple[str, ...]) -> Drill:
        return Drill(self.id, self.expected, self.title, doses=doses, start=self.start, unavailable=self.unavailable)


def drop_pages(path: Path) -> None:
    """The file's pages leave the page cache: written back, then given up."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def serve_once(root: Path, model: Path, limit: Limit, wanted: Mapping[str, str], **settings: Any) -> Run:
    """Starts a server, waits until it answers or is gone, stops it, and returns its run. Nothing is left running."""
    root.mkdir(parents=True, exist_ok=True)
    before = {run.id for run in list_runs(root)}
    config = ServeConfig(model=str(model), name="drill", port=0, run_root=str(root), **settings)
    failure: WorkbenchError | None = None
    with variables(wanted), _watched(limit):
        try:
            server = start_server(config, within=() if limit.shared is None else shared_memory.command(limit.shared))
        except WorkbenchError as error:
            server, failure = None, error
        if server is not None:
            try:
                time.sleep(AFTER_LOADING)
            finally:
                with undisturbed():
                    server.stop()
    made = [run for run in list_runs(root) if run.id not in before]
    if len(made) != 1:  # refused before a run was made: that is no fault of the drill's
        raise failure or UsageError(f"{len(made)} runs were made where one was started", "run drills one after another")
    (run,) = made
    with open_run(run):
        pass  # brings in what dead ranks left in their rings
    return run


@contextmanager
def _watched(limit: Limit) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=_watch, args=(limit, stop), name="limit", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(limit: Limit, stop: threading.Event) -> None:
    """Finds ranks as they appear, sets their limit, and kills those that rise above it."""
    bases: dict[int, int] = {}
    looked = 0.0
    while not stop.is_set():
        if time.monotonic() - looked > 0.05:
            looked = time.monotonic()
            for pid in _ranks():
                if pid not in bases:
                    bases[pid] = _anon(pid)
                    _limit_data(pid, limit.data)
        if limit.rise is not None:
            for pid, base in bases.items():
                if _anon(pid) - base > limit.rise:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        time.sleep(POLL)


def _ranks() -> list[int]:
    """Processes of ours that are ranks."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.name().startswith(RANK):
                found.append(child.pid)
        except psutil.Error:
            continue
    return found


def _anon(pid: int) -> int:
    now = resident(read_text(f"/proc/{pid}/status"))
    return 0 if now is None else now.anon


def _limit_data(pid: int, above: int | None) -> None:
    if above is None:
        return
    for line in (read_text(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("VmData:"):
            size = int(line.split()[1]) * 1024 + above
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_DATA, (size, size))
