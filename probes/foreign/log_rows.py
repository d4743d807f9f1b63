"""An engine's log as rows of a run: events that the playbooks read like those of our own ranks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probes.foreign.engine_log import EngineLog, read_engine_log
from probes.recorder import Recorder
from traces.errors import UsageError
from traces.run import Run, whole_run

MOST_LINES = 5_000_000


def run_of_logs(paths: Iterable[Path], root: Path | None = None) -> Run:
    """A closed run of what the logs say. UsageError for a file that cannot be read or in which no line is known."""
    lines: list[str] = []
    files = list(paths)
    for path in files:
        try:
            with path.open(errors="replace") as stream:
                lines += stream.readlines(64 << 20)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}", "give the text an engine wrote") from error
    log = read_engine_log(lines[:MOST_LINES])
    if not log.facts and not log.errors:
        raise UsageError(f"no line of {', '.join(map(str, files))} is known", "give a log of vLLM or SGLang, from the start of the engine")
    with whole_run(engine=log.engine, model="", root=root, world_size=0) as run:
        write_log(run, log)
    return run


def write_log(run: Run, log: EngineLog) -> None:
    """One event with all facts, one a failure."""
    recorder = Recorder.open(run, "log", ship=False)
    try:
        recorder.register("foreign", device="")
        facts: dict[str, Any] = {"failed_in": log.phase if log.errors else "", "frames": log.frames[-40:], **log.facts}
        recorder.event("engine_fact", **facts)
        for text in log.errors:
            recorder.event("engine_error", text=text, phase=log.phase)
    finally:
        recorder.close()
