"""Slow starts: what each cause looks like in a run's account and in an engine's log; real ones on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from playbooks.drills.drill import HEALTHY, Dose
from playbooks.runner import diagnose
from playbooks.slow_load.drills import DRILLS
from probes.foreign.log_rows import run_of_logs
from traces import schema
from traces.producer import Recorder
from traces.run import Run, create_run

SECOND = 10**9
T0 = 1_790_000_000 * SECOND
MIB = 1 << 20
GIB = 1 << 30
LOAD = {
    "wall_ns": 8 * SECOND,
    "read_ns": 24 * SECOND,
    "reads": 1200,
    "most_in_flight": 4,
    "by_calls": 10 * GIB,
    "minor_faults": 9000,
    "major_faults": 0,
}


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., Run]:
    """started(changes of the load's account, file pages): a closed run of one rank that loaded 10 GiB in 8 of 12 seconds."""

    def write(changes: dict[str, Any], pages: int = 20 * MIB, after: float = 0.5, retries: int = 0) -> Run:
        run = create_run(engine="workbench", model="m", root=tmp_path, world_size=1)
        recorder = Recorder.open(run, "rank0", ship=False)
        ended = T0 + int((8.5 + after) * SECOND)
        _event(recorder, "load_plan", T0, {"planned_read": 10 * GIB, "checkpoint_bytes": 10 * GIB})
        _event(recorder, "load_read", T0 + int(8.5 * SECOND), LOAD | changes)
        _event(recorder, "phase", T0, {"phase": "load"}, ended - T0)
        _event(recorder, "phase", ended, {"phase": "warmup"}, 3 * SECOND)
        for at, file in ((T0, 60 * MIB), (T0 + SECOND, 60 * MIB + pages)):
            recorder.row(schema.MEMORY, ts=at, rank=0, phase="load", rss_anon=0, rss_file=file, rss_shmem=0, hwm=0)
        recorder.row(
            schema.LOAD, ts=T0, dur=8 * SECOND, rank=0, file="a.safetensors", bytes_read=1, bytes_kept=1, retries=retries, source="direct"
        )
        recorder.close()
        run.update(state="closed")
        return run

    return write


def _event(recorder: Recorder, kind: str, ts: int, attrs: dict[str, Any], dur: int = 0) -> None:
    recorder.row(schema.EVENT, ts=ts, dur=dur, rank=0, kind=kind, attrs=attrs)


def first(run: Run) -> tuple[str | None, Any]:
    found = diagnose(run, "slow-load", argv=())
    serious = [one.id for one in found.findings if one.severity != "info"]
    return (serious[0] if serious else None), found


CASES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "healthy": (None, {"changes": {}}),
    "healthy, bound by conversion": (None, {"changes": {"read_ns": 2 * SECOND}}),
    "every rank": ("load.every-rank-reads-all", {"changes": {"by_calls": 40 * GIB}}),
    "mapped": (
        "load.mmap-fault",
        {"changes": {"by_calls": MIB, "most_in_flight": 1, "read_ns": 7 * SECOND, "major_faults": 160_000}, "pages": 10 * GIB},
    ),
    "one stream": ("load.single-thread", {"changes": {"most_in_flight": 1, "read_ns": 8 * SECOND}}),
    "one stream, most of the time converting": (
        "load.single-thread",
        {"changes": {"most_in_flight": 1, "read_ns": 3 * SECOND, "user_ns": 4 * SECOND, "system_ns": SECOND}},
    ),
    "one read at a time, waiting for something else": (
        None,
        {"changes": {"most_in_flight": 1, "read_ns": 2 * SECOND, "user_ns": SECOND, "system_ns": 0}},
    ),
    "small reads": ("load.single-thread", {"changes": {"read_ns": 8 * SECOND, "reads": 160_000}}),
    "gap": ("load.postprocess", {"changes": {}, "after": 20.0}),
    "errors": ("load.read-errors", {"changes": {}, "retries": 7}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_account_leads_to_its_cause(name: str, started: Callable[..., Run]) -> None:
    expected, arguments = CASES[name]
    cause, found = first(started(**arguments))
    assert cause == expected, [(check.id, check.outcome, check.summary) for check in found.checks]
    assert found.verdict == ("healthy" if expected is None else "problem")
    if expected is not None:
        top = found.findings[0]
        assert top.impact is not None and 0 < top.impact.value <= 40 and top.remedy and top.summary.endswith(".")


LOGS: dict[str, tuple[str | None, list[str]]] = {
    "download": (
        "load.download",
        [
            "INFO Time spent downloading weights for m: 912.500000 seconds",
            "INFO Loading weights took 60.00 seconds",
            "INFO Model loading took 61.35 GiB memory and 62.000000 seconds",
        ],
    ),
    "sglang-24256": (
        "load.postprocess",
        ["INFO Loading weights took 60.00 seconds", "INFO Model loading took 61.35 GiB memory and 190.000000 seconds"],
    ),
    "vllm-20098": (
        "load.warmup",
        [
            "INFO Loading weights took 60.00 seconds",
            "INFO Model loading took 61.35 GiB memory and 61.000000 seconds",
            "INFO Graph capturing finished in 95 secs, took 1.27 GiB",
            "INFO init engine (profile, create kv cache, warmup model) took 240.00 s (compilation: 120.00 s)",
        ],
    ),
}


@pytest.mark.parametrize("name", list(LOGS))
def test_log_leads_to_its_cause(name: str, tmp_path: Path) -> None:
    expected, lines = LOGS[name]
    file = tmp_path / "engine.log"
    file.write_text("\n".join(lines) + "\n")
    cause, found = first(run_of_logs([file], tmp_path / "runs"))
    assert cause == expected, [(check.id, check.outcome, check.summary) for check in found.checks]


def test_a_log_that_shows_no_reads_is_not_called_healthy(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    file.write_text("INFO Loading weights took 60.00 seconds\nINFO Model loading took 61.35 GiB memory and 61.000000 seconds\n")
    cause, found = first(run_of_logs([file], tmp_path / "runs"))
    assert cause is None and found.verdict == "inconclusive"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", [drill.id for drill in DRILLS])
def test_every_drill(name: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Cold starts of real servers."""
    drill = next(drill for drill in DRILLS if drill.id == name)
    assert drill.start is not None
    cause, found = first(drill.start(Dose(1, seed), tmp_path_factory.getbasetemp() / "slow" / "runs", print))
    expected = None if drill.expected == HEALTHY else drill.expected
    assert cause == expected, [(check.id, check.outcome, check.summary) for check in found.checks]
