"""A diagnosis of facts that were written by hand: no forward pass, no folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from playbooks.document import CheckRecord, Diagnosis
from playbooks.runner import diagnose
from probes.recorder import Recorder
from traces.run import whole_run

Facts = Iterable[tuple[str, dict[str, Any]]]


@pytest.fixture
def judged(tmp_path: Path) -> Callable[[Facts], tuple[Diagnosis, dict[str, CheckRecord]]]:
    """judged(facts) -> the diagnosis, and its checks by the last part of their names."""

    def run(facts: Facts) -> tuple[Diagnosis, dict[str, CheckRecord]]:
        with whole_run(engine="examination", model="m", root=tmp_path / "runs", world_size=1, layout={}) as made:
            recorder = Recorder.open(made, "examination", ship=False)
            for kind, values in facts:
                recorder.event(kind, **values)
            recorder.close()
        found = diagnose(made, "garbled-output", argv=())
        return found, {one.id.partition(".")[2]: one for one in found.checks}

    return run
