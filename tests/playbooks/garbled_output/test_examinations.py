"""Whole examinations of small folders: what was not seen is never called healthy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from playbooks.document import CheckRecord, Diagnosis
from playbooks.garbled_output.examine.run import EXAMINATION, Question, examine
from playbooks.runner import diagnose
from runtime.local import load_local
from runtime.shipped import shapes_moe
from runtime.taps.capture import Capture
from runtime.taps.tapped_model import TappedModel, record
from runtime.validation.coverage import covering_ids
from runtime.validation.subject import probe_ids
from traces.run import whole_run
from workbench.cli.judged import Asked, judged_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shapes_moe(), tmp_path / "model"))


def told(folder: Path, reference: Path | str | None = None, **more: Any) -> Diagnosis:
    run = examine(Question(folder, None if reference is None else str(reference), **more), folder.parent / "runs")
    return diagnose(run, "garbled-output", argv=())


def check(found: Diagnosis, name: str) -> CheckRecord:
    return next(one for one in found.checks if one.id == f"garbled.{name}")


def taps(folder: Path, ids: list[int], keep: tuple[str, ...] = ()) -> Path:
    """A file of taps, all of them or those named."""
    own = record(TappedModel.over(load_local(folder)), ids)
    path = folder.parent / "taps.safetensors"
    Capture(own.ids, {name: tap for name, tap in own.taps.items() if not keep or name in keep}, own.facts).save(path)
    return path


def test_a_reference_of_one_tap_clears_nothing(folder: Path) -> None:
    found = told(folder, taps(folder, covering_ids(load_local(folder), probe_ids(998, 0), 998), ("embed",)))
    assert found.verdict == "inconclusive"
    assert "only one side" in check(found, "diverging-tap").summary
    assert {check(found, name).outcome for name in ("rope", "router", "expert-map", "attention")} == {"skipped"}


def test_experts_that_no_token_reached_are_not_cleared_by_their_values(folder: Path) -> None:
    found = told(folder, taps(folder, probe_ids(998, 0, 4)))
    assert check(found, "weight-corrupt").outcome == "pass"
    assert found.verdict == "inconclusive"
    assert "reached none" in check(found, "diverging-tap").summary


def test_a_good_folder_beside_it_makes_a_folder_healthy(folder: Path) -> None:
    """The probe is lengthened until every expert of the reference has answered."""
    found = told(folder, shapes_moe())
    assert (found.verdict, check(found, "diverging-tap").outcome) == ("healthy", "pass")


def test_an_examination_is_judged_again_as_it_stands(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with whole_run(engine=EXAMINATION, model="m", root=root, world_size=1, layout={}) as run:
        pass
    assert judged_run("garbled-output", Asked(run=str(run.path))) == str(run.path)
