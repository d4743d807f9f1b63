"""An engine's log as rows of a run: events that the playbooks read like those of our own ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probes.foreign import start_log
from probes.foreign.engine_log import EngineLog, read_engine_log
from probes.recorder import Recorder
from traces.errors import UsageError
from traces.run import Run, whole_run
from traces.schema import EVENT
from traces.store import write_rows

MOST_LINES = 5_000_000


def run_of_logs(paths: Iterable[Path], root: Path | None = None, fingerprints: Mapping[str, dict[str, Any]] | None = None) -> Run:
    """A closed run of what the logs say. `fingerprints` are those of the processes that wrote them, where they are known.

    UsageError for a file that cannot be read or in which no line is known.
    """
    lines: list[str] = []
    signs: list[start_log.Sign] = []
    files = list(paths)
    for path in files:
        try:
            with path.open(errors="replace") as stream:
                read = stream.readlines(64 << 20)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}", "give the text an engine wrote") from error
        lines += read
        signs += start_log.signs(read, path.name)
    log = read_engine_log(lines[:MOST_LINES])
    if not log.facts and not log.errors and not signs:
        hint = "give a log of vLLM, SGLang, torchrun or the ranks, from the start"
        raise UsageError(f"no line of {', '.join(map(str, files))} is known", hint)
    with whole_run(engine=log.engine, model="", root=root, latest=False, world_size=0, fingerprints=dict(fingerprints or {})) as run:
        write_log(run, log)
        write_rows(run, EVENT, start_log.events(signs), producer="start-log")
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
