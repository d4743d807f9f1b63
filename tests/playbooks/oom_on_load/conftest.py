"""Runs that say what a loading rank would have said: recorded through the real recorder, with numbers that others measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from playbooks.document import Diagnosis
from playbooks.runner import diagnose
from traces import schema
from traces.producer import Recorder
from traces.run import Run, create_run

MIB = 1 << 20
T0 = 1_790_000_000 * 10**9
BASE = 150 * MIB


@dataclass
class Loaded:
    """One rank's load in MiB: (phase, anon above the base, file) samples 50 ms apart; reading starts and ends before those samples."""

    samples: Sequence[tuple[str, int, int]]
    reading: int | None = 1
    all_read: int | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    placing: tuple[int, int] | None = None  # (anon above the base, file) when the first value was placed
    exit_code: int | None = None
    shm_free: int | None = None  # when it died
    oom: str = ""


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Run]:
    """loaded(rank 0, rank 1, ...): a closed run."""

    def write(*ranks: Loaded) -> Run:
        run = create_run(engine="workbench", model="m", root=tmp_path / "runs", world_size=len(ranks))
        for rank, story in enumerate(ranks):
            recorder = Recorder.open(run, f"rank{rank}", ship=False)
            recorder.register("rank", rank=rank)
            _event(recorder, rank, "load_plan", T0, story.plan)
            for number, (phase, anon, file) in enumerate([("plan", 0, 60), *story.samples]):
                at = T0 + number * 50_000_000
                if number == story.reading:
                    _event(recorder, rank, "load_reading", at - 1, {})
                if number == story.all_read:
                    _event(recorder, rank, "load_read", at - 1, {})
                sizes = {"rss_anon": BASE + anon * MIB, "rss_file": file * MIB, "rss_shmem": 0, "hwm": 0}
                recorder.row(schema.MEMORY, ts=at, rank=rank, phase=phase, **sizes)
            if story.placing is not None:
                anon, file = story.placing
                _event(recorder, rank, "load_placing", T0 + 1, {"anon": BASE + anon * MIB, "file": file * MIB})
            if story.oom:
                _event(recorder, rank, "oom", at, {"phase": phase, "error": story.oom})
            if story.exit_code is not None:
                _event(recorder, rank, "death", at, {"exit_code": story.exit_code, "shm_free": story.shm_free})
            recorder.close()
        run.update(state="closed")
        return run

    return write


def _event(recorder: Recorder, rank: int, kind: str, ts: int, attrs: dict[str, Any]) -> None:
    recorder.row(schema.EVENT, ts=ts, dur=0, rank=rank, kind=kind, attrs=attrs)


@pytest.fixture
def load() -> type[Loaded]:
    return Loaded


@pytest.fixture
def first() -> Callable[[Run], tuple[str | None, Diagnosis]]:
    """first(run): the id of the first finding that is more than a note, and the whole diagnosis."""

    def judge(run: Run) -> tuple[str | None, Diagnosis]:
        found = diagnose(run, "oom-on-load", argv=())
        serious = [one.id for one in found.findings if one.severity != "info"]
        return (serious[0] if serious else None), found

    return judge
