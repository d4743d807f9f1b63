"""Pressure on a process from outside: stopped in a duty cycle, or a host on which others compute. Always taken away at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.child import PARENT


@contextmanager
def interrupted(pid: int, stopped_ms: float, running_ms: float) -> Iterator[None]:
    """Stops a process for `stopped_ms`, lets it run for `running_ms`, and so on, as a CPU quota does (SIGSTOP and SIGCONT).

    A duty cycle of 30/10 ms was measured to make a clear straggler (reference/fault_lab.md section 3).
    """
    over = threading.Event()

    def cycle() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(stopped_ms / 1e3)
            os.kill(pid, signal.SIGCONT)
            over.wait(running_ms / 1e3)

    def work() -> None:
        with contextlib.suppress(ProcessLookupError):
            cycle()

    thread = threading.Thread(target=work, name="drill-interrupt", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def busy(number: int) -> Iterator[None]:
    """So many processes that do nothing but compute. Ctrl-C is not theirs: they are killed at the end."""
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, PARENT: str(os.getpid()), "PYTHONPATH": root}
    command = [sys.executable, "-m", "playbooks.drills.burn"]
    started = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()

