"""The same checkpoint under the same limit dies with a faulty loader and serves with the default; the playbook names the fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from playbooks.drills.drill import HEALTHY, Dose
from playbooks.oom_on_load.drills import DRILLS
from playbooks.runner import diagnose

QUICK = ("oom.well", "oom.construct")


def _run(name: str, root: Path, dose: Dose) -> None:
    drill = next(drill for drill in DRILLS if drill.id == name)
    assert drill.start is not None
    if reason := drill.unavailable():
        pytest.skip(reason)
    run = drill.start(dose, root / "runs", print)
    found = diagnose(run, "oom-on-load", argv=())
    serious = [one.id for one in found.findings if one.severity != "info"]
    expected = [] if drill.expected == HEALTHY else [drill.expected]
    assert serious[:1] == expected, [(check.id, check.outcome, check.summary) for check in found.checks]
    assert found.verdict == ("healthy" if drill.expected == HEALTHY else "problem")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drills")


@pytest.mark.parametrize("name", QUICK)
def test_quick(name: str, root: Path) -> None:
    _run(name, root, Dose(0, 0))


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0, 1])
@pytest.mark.parametrize("name", [drill.id for drill in DRILLS])
def test_every_drill(name: str, strength: int, root: Path) -> None:
    _run(name, root, Dose(strength, 1))
