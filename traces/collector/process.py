"""Starting and stopping a collector as a child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import traces
from traces.address import CollectorAddress
from traces.errors import Unreachable
from traces.run import Run

START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0


class CollectorProcess:
    """A running collector."""

    def __init__(self, run: Run, process: subprocess.Popen[bytes], address: CollectorAddress) -> None:
        self.run, self.address = run, address
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self, timeout: float = STOP_TIMEOUT) -> int:
        """Ends it cleanly: queue committed, checkpoint made, run closed. Returns its exit code; kills it after the timeout."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """kill -9. What it acknowledged is on disk."""
        self._process.kill()
        return self._process.wait()

    def __enter__(self) -> CollectorProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def start(run: Run, *, bind: str = "127.0.0.1", port: int = 0, timeout: float = START_TIMEOUT) -> CollectorProcess:
    """Starts a collector for a run and waits until it listens. It ends with this process. Raises Unreachable, NotWritable."""
    log = run.folder("logs") / "collector.log"
    options = {"--run": str(run.path), "--bind": bind, "--port": str(port), "--parent-pid": str(os.getpid())}
    command = [sys.executable, "-m", "traces.collector", *(part for option in options.items() for part in option)]
    root = str(Path(traces.__file__).resolve().parent.parent)
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path}, start_new_session=True
        )
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        address = run.collector()
        if address is not None and address.pid == process.pid:
            return CollectorProcess(run, process, address)
        if process.poll() is not None:
            break
        time.sleep(0.02)
    if process.poll() is None:
        process.kill()
        process.wait()
    raise Unreachable(f"the collector of {run.id} did not start: {_last_line(log)}", f"its log is {log.name} in the run's logs folder")


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip() and not line.startswith("  ")]
    return lines[-1].strip() if lines else "it said nothing"
