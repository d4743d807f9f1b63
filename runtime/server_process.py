"""A server in a process of its own, for the demo, for drills and for tests: started, waited for, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from runtime.serve_config import ServeConfig
from traces.errors import UsageError, WorkbenchError
from traces.run import Run

START_SECONDS = 600.0
STOP_SECONDS = 30.0


class StartFailed(WorkbenchError):
    """The server ended before it was ready; the message is what it said."""


@dataclass(slots=True)
class ServerProcess:
    """A running `workbench serve`. Use it as a context manager, or call `stop`."""

    process: subprocess.Popen[str]
    url: str
    run: Run
    said: list[str]  # its stderr so far, line by line

    def stop(self, timeout: float = STOP_SECONDS) -> int:
        """SIGTERM, and SIGKILL after `timeout` (nothing outlives it either way). Its exit code."""
        return _end(self.process, timeout)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def start_server(
    config: ServeConfig, on_line: Callable[[str], None] | None = None, timeout: float = START_SECONDS, within: Sequence[str] = ()
) -> ServerProcess:
    """Starts it and waits until it answers. `on_line` gets every line it says meanwhile; `within`: a command that becomes the server's.

    Raises UsageError (its exit code 2) or StartFailed with its words.
    """
    process = _spawn(config, within)
    said: list[str] = []
    assert process.stdout is not None and process.stderr is not None
    threading.Thread(target=_collect, args=(process.stderr, said, on_line), daemon=True, name="serve-stderr").start()
    answer: list[str] = []
    reader = threading.Thread(target=lambda: answer.append(process.stdout.readline() if process.stdout else ""), daemon=True)
    reader.start()
    try:
        reader.join(timeout)
    except BaseException:  # Ctrl-C while it loads
        _end(process, STOP_SECONDS)
        raise
    if answer and answer[0]:
        ready = json.loads(answer[0])
        return ServerProcess(process, ready["url"], Run(Path(ready["path"])), said)
    if process.poll() is None and not answer:
        process.kill()
    code = process.wait()
    time.sleep(0.1)  # the reader of stderr has the last lines by now
    raise _failure(code, said)


def _spawn(config: ServeConfig, within: Sequence[str]) -> subprocess.Popen[str]:
    """Its standard input stays open as long as this process lives: at its end it stops by itself."""
    settings = {name: value for name, value in msgspec.to_builtins(config).items() if value is not None}
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [*within, sys.executable, "-m", "runtime.serve_main", json.dumps(settings)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
    )  # fmt: skip


def _end(process: subprocess.Popen[str], timeout: float) -> int:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _collect(stream: IO[str], said: list[str], on_line: Callable[[str], None] | None) -> None:
    for line in stream:
        said.append(line.rstrip("\n"))
        if on_line is not None:
            on_line(said[-1])


def _failure(code: int, said: list[str]) -> WorkbenchError:
    words = [line for line in said if line.strip()]
    message = "\n".join(words[-12:]) or f"the server ended with exit code {code} and said nothing"
    return UsageError(message) if code == 2 else StartFailed(message)
