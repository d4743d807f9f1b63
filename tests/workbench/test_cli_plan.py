"""`workbench plan` as a person and a script meet it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workbench.cli.main import run

ROOT = Path(__file__).parents[2]
K3 = str(ROOT / "tests" / "runtime" / "published" / "kimi_k3.json")
CONTRACT = {"rank", "weights", "kv", "state", "activations", "buffers", "total", "limit", "fits"}


def _json(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    assert run(["plan", *argv, "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_document_of_kimi_k3(capsys: pytest.CaptureFixture[str]) -> None:
    plan = _json(capsys, K3, "--tp", "4", "--dp", "16", "--device-memory", "141GiB", "--context", "128k", "--concurrency", "64")
    assert plan["schema"] == "workbench.plan.v1"
    numbers = {key: plan["model"][key] for key in ("parameters", "stored_bytes", "tensors")}
    assert numbers == {"parameters": 2_779_931_837_184, "stored_bytes": 1_560_860_324_864, "tensors": 497_220}
    assert {key: plan["layout"][key] for key in ("tp", "pp", "dp", "ep")} == {"tp": 4, "pp": 1, "dp": 16, "ep": 64}
    assert plan["kv_bytes_per_token"] == 27_648
    assert [rank["rank"] for rank in plan["per_rank"]] == list(range(64))
    for rank in plan["per_rank"]:
        assert set(rank) >= CONTRACT
        parts = sum(rank[part] for part in ("weights", "kv", "state", "activations", "buffers", "overhead"))
        assert rank["total"] == parts and rank["fits"] is (parts <= rank["limit"])
    assert set(plan["basis"].values()) == {"fact", "estimate"}
    assert plan["assumptions"] and plan["fits"] is True


def test_what_does_not_fit_ends_with_3_and_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    plan = _json(capsys, K3, "--devices", "8", "--device-memory", "141GiB", code=3)
    assert plan["fits"] is False
    advice = " ".join(plan["advice"])
    assert "does not fit" in advice and "smallest cluster of such nodes that fits" in advice


def test_without_a_limit_nothing_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    plan = _json(capsys, K3)
    assert plan["fits"] is None and plan["per_rank"][0]["fits"] is None and plan["context"]["fits"] is None
    assert "--device-memory" in plan["advice"][0]


def test_text_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", K3, "--nodes", "8", "--devices-per-node", "8", "--device-memory", "141GiB", "--intra", "900GB/s", "--inter", "50GB/s"]
    assert run([*argv, "--context", "131072", "--concurrency", "64"]) == 0
    text = capsys.readouterr().out
    for words in ("2,779,931,837,184", "497,220 tensors", "27,648 bytes a token", "estimates", "why not", "it fits"):
        assert words in text


def test_the_shipped_model(capsys: pytest.CaptureFixture[str]) -> None:
    plan = _json(capsys, "shapes", "--ep", "4")
    assert plan["model"]["source"] == "config and headers" and plan["layout"]["ep"] == 4


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--tp", "5"], "heads"),
        (["--ep", "6", "--tp", "4"], "multiple"),
        (["--device-memory", "lots"], "no size"),
        (["--intra", "fast"], "no rate"),
        (["--tp", "8", "--devices", "4"], "needs 8 devices"),
    ],
)
def test_bad_questions_are_refused(capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    assert run(["plan", K3, *argv]) == 2
    assert words in capsys.readouterr().err


def test_needs_no_torch_and_no_numpy() -> None:
    code = f"import sys\nfrom workbench.cli.main import run\nassert run(['plan', {K3!r}]) == 0\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=os.environ, timeout=60, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.rpartition("MODULES ")[2].split()}
    assert not loaded & {"torch", "numpy", "pandas", "duckdb", "pyarrow"}
