"""The hang playbook on NVIDIA's labelled dumps and on gloo jobs that really hang."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from playbooks.runner import diagnose
from probes.foreign import importing
from traces.run import create_run
from traces.store import write_rows

SAMPLES = Path(os.environ.get("WORKBENCH_SAMPLES", Path(__file__).parents[4] / "shared" / "samples")) / "flight_recorder"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"the sample files are not here: {SAMPLES.name}")
PROGRAM = Path(__file__).with_name("hung_ranks.py")


def judged(folder, root):
    run = create_run(engine="imported", model="dumps", root=root)
    rows, _ = importing.read([folder])
    for table, values in rows.items():
        write_rows(run, table, values, producer="import")
    return diagnose(run, "hang")


@needs_samples
@pytest.mark.parametrize(
    ("name", "cause", "ranks"), [("lock_gil_1st", "hang.missing-rank", [9, 14]), ("gpu_error_1st", "hang.stuck-rank", [12, 14])]
)
def test_labelled_dumps_name_exactly_the_injected_ranks(tmp_path, name, cause, ranks):
    found = judged(SAMPLES / name, tmp_path)
    assert found.verdict == "problem"
    assert [(one.id, one.subject.labels["ranks"]) for one in found.findings] == [(cause, ranks)]
    assert all(evidence.observed is not None for evidence in found.findings[0].evidence)


@needs_samples
def test_without_the_faulty_ranks_dumps_nobody_innocent_is_blamed(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    for file in (SAMPLES / "lock_gil_1st").glob("_dump_*"):
        if file.name not in ("_dump_9", "_dump_14"):
            (folder / file.name).symlink_to(file)
    found = judged(folder, tmp_path)
    assert [(one.id, one.subject.labels["ranks"]) for one in found.findings] == [("hang.silent-rank", [9, 14])]


def hung(folder, fault, world=3):
    """Dumps of a real job with that fault."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    common = (str(world), str(port), str(folder), fault)
    ranks = [
        subprocess.Popen([sys.executable, str(PROGRAM), str(rank), *common], env=environment, stderr=subprocess.PIPE)
        for rank in range(world)
    ]
    deadline = time.monotonic() + 120
    try:
        while len(list(folder.glob("done_*"))) < world:
            assert time.monotonic() < deadline and all(rank.poll() in (None, 0) for rank in ranks), [rank.poll() for rank in ranks]
            time.sleep(0.05)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for mark in folder.glob("done_*"):
        mark.unlink()
    return folder


def test_a_rank_that_stays_in_host_code_is_named(tmp_path):
    found = judged(hung(tmp_path / "dumps", "stall"), tmp_path)
    assert [(one.id, one.subject.labels["ranks"]) for one in found.findings] == [("hang.missing-rank", [2])]
    assert found.findings[0].evidence[0].observed == found.findings[0].evidence[0].expected - 1


def test_a_rank_that_calls_something_else_is_named(tmp_path):
    found = judged(hung(tmp_path / "dumps", "skip"), tmp_path)
    assert found.verdict == "problem"
    assert (found.findings[0].id, found.findings[0].subject.labels["ranks"]) == ("hang.desync", [1])


def test_a_job_that_runs_is_not_called_hung(tmp_path):
    found = judged(hung(tmp_path / "dumps", "none"), tmp_path)
    assert found.verdict == "healthy" and not found.findings


def test_an_end_that_one_rank_has_not_noted_yet_is_a_doubt_and_no_problem(tmp_path):
    """A dump in the moment between the end of a collective and the library's note of it."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank, noted in enumerate((False, True)):
        entry = {
            "profiling_name": "gloo:all_reduce", "process_group": ["0", "d"], "pg_id": 0, "time_created_ns": 1, "collective_seq_id": 7,
            "p2p_seq_id": 0, "state": "scheduled", "retired": noted, "is_p2p": False, "input_sizes": [[4]], "input_dtypes": ["Float"],
        }  # fmt: skip
        (folder / f"trace_rank_{rank}.json").write_text(json.dumps({"version": "2.10", "entries": [entry], "pg_config": {}}))
    found = judged(folder, tmp_path)
    assert found.verdict == "warning"
    assert [(one.id, one.confidence.basis) for one in found.findings] == [("hang.stuck-rank", "hypothesis")]


def test_without_dumps_the_playbook_abstains(tmp_path):
    found = diagnose(create_run(root=tmp_path), "hang")
    assert found.verdict == "inconclusive"
    assert "workbench import" in next(check for check in found.checks if check.id == "hang.stuck-rank").summary
