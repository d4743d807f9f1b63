"""The demonstration as a stranger runs it: real ranks, real traffic, a real fault, found and repaired while serving."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from traces.run import Run
from traces.store import open_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    runs = tmp_path_factory.mktemp("demo-runs")
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "demo", "--json"], cwd=ROOT, env=os.environ | {"WORKBENCH_RUNS": str(runs)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


# Not marked slow: this is the main job, and every change must pass it.
pytestmark = pytest.mark.timeout(700)


def test_the_fault_is_found_where_it_was_set_and_repaired(shown: dict[str, Any]) -> None:
    assert shown["schema"] == "workbench.demo.v1"
    assert shown["ok"] is True
    assert shown["problems"] == []
    before, during, after = (shown[name] for name in ("before", "during", "after"))
    assert before["schema"] == during["schema"] == after["schema"] == "workbench.diagnosis.v1"
    assert before["verdict"] == "healthy"
    first = during["findings"][0]
    assert first["id"] == "tail.expert-imbalance"
    assert first["subject"]["labels"]["ranks"] == [shown["fault"]["rank"]]
    assert set(first["subject"]["labels"]["layers"]) <= set(shown["fault"]["layers"])
    assert during["applied"][0]["answers_equal"] is True
    assert during["applied"][0]["rolled_back"] is False
    assert during["imbalance"] > before["imbalance"]
    assert after["imbalance"] < during["imbalance"]
    assert after["expert_ms"] < during["expert_ms"]
    assert before["exact"] == during["exact"] == after["exact"] or min(before["exact"], during["exact"], after["exact"]) > 0.9


def test_no_claim_on_too_few_requests(shown: dict[str, Any]) -> None:
    for name in ("before", "during", "after"):
        assert shown[name]["p99"] is None
        low, high = shown[name]["p50_interval"]
        assert low <= shown[name]["p50"] <= high


def test_the_run_is_closed_and_consistent(shown: dict[str, Any]) -> None:
    run = Run(Path(shown["path"]))
    assert run.state == "closed"
    with open_run(run) as store:
        bytes_of = "sum(list_sum(sent)) AS sent, sum(list_sum(received)) AS received"
        sent = store.rows(f"SELECT {bytes_of} FROM collective WHERE op <> 'header'")[0]
        assert sent["sent"] == sent["received"] > 0
        both = "sum(list_sum(tokens)) AS tokens, sum(list_sum(physical)) AS rows"
        counts = store.rows(f"SELECT layer, {both} FROM expert_load GROUP BY layer")
        assert counts
        assert all(row["tokens"] == row["rows"] for row in counts)
        assert store.rows("SELECT count(*) AS n FROM loss")[0]["n"] == 0
        kinds = {row["kind"]: row["n"] for row in store.rows("SELECT kind, count(*) AS n FROM document GROUP BY kind")}
    assert kinds["workbench.demo.v1"] == 1
    assert kinds["workbench.diagnosis.v1"] >= 3


def test_the_report_is_complete(shown: dict[str, Any]) -> None:
    page = Path(shown["report"]).read_text()
    for key in ("waterfall", "stages", "imbalance", "experts-heat", "ranks-heat", "wait-matrix", "frontier", "timeline", "memory"):
        assert f'id="plot-{key}"' in page
    assert "Before, during, after" in page
    assert "Not diagnosed" not in page


def test_stages_are_timed(shown: dict[str, Any]) -> None:
    names = [stage["name"] for stage in shown["stages"]]
    assert names[0] == "doctor"
    assert names[-1] == "report"
    assert names.index("break") < names.index("traffic during") < names.index("diagnose during") < names.index("repair")
    assert all(stage["seconds"] >= 0 for stage in shown["stages"])
