"""Every family in every layout of the mesh answers like one rank: logits, drawn tokens, and placements with redundant experts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from probes.checkpoint import Checkpoint  # noqa: E402
from runtime.arch import read_arch  # noqa: E402
from runtime.layout import Layout  # noqa: E402

PROGRAM = Path(__file__).parents[1] / "mesh_program.py"
TOLERANCE = 1e-4
GAP = 1e-2  # a greedy token may differ where the two best logits are closer
# With every change: a family of each kind of attention, its weights quantised, split over lanes and over stages.
QUICK = {"tp2": {"tp": 2}, "pp2": {"pp": 2}}
FEW = ("deepseek_v3_fp8", "gpt_oss_mxfp4", "kimi_k3")
# On request: everything.
ALL = {
    **QUICK, "dp2": {"dp": 2}, "pp3": {"pp": 3}, "tp4": {"tp": 4}, "tp2pp2": {"tp": 2, "pp": 2}, "dp2tp2": {"dp": 2, "tp": 2},
    "dp2pp2": {"dp": 2, "pp": 2},
}  # fmt: skip
MANY = ("mixtral", "deepseek_v3", "gpt_oss", "kimi_linear", "kimi_k25", "glm4_moe", "minimax_m2")


def run(family: Any, layouts: dict[str, dict[str, int]], folder: Path) -> dict[str, list[Any]]:
    """What each rank of each layout computed."""
    prompts = [{"tokens": tokens, "positions": None, "patches": None, "grids": []} for tokens in family.prompts]
    torch.save({"checkpoint": str(family.path), "prompts": prompts, "layouts": list(layouts.values())}, folder / "job.pt")
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2]), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, str(PROGRAM), str(folder)], env=environment, stderr=subprocess.PIPE, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return {
        name: [torch.load(folder / f"out{n}-{r}.pt", weights_only=False) for r in range(Layout(**sizes).world)]
        for n, (name, sizes) in enumerate(layouts.items())
    }


def check(family: Any, layout: Layout, outs: list[Any]) -> float:
    """The largest relative L2 of the logits."""
    drawn: dict[int, list[Any]] = {}
    largest = 0.0
    for out in outs:
        expected = family.logits[out["place"].dp :: layout.dp] if out["place"].pp == layout.pp - 1 else []
        for answers in (out["whole"], out["switched"]):
            errors = [float((a - b).norm() / b.norm()) for a, b in zip(answers, expected, strict=True)]
            assert max(errors, default=0.0) < TOLERANCE, errors
            largest = max([largest, *errors])
        drawn |= out["tokens"]
        check_shared(family, out["tables"]["layer"])
    assert sorted(drawn) == list(range(len(family.prompts)))
    for number, answer in drawn.items():
        if number:  # the first is drawn at random
            check_greedy(family, family.prompts[number], [token for token, _, _ in answer])
    return largest


def check_shared(family: Any, rows: list[dict[str, Any]]) -> None:
    """The shared expert is computed while rows travel to the experts and back; where there is none, no time is told."""
    arch = read_arch(Checkpoint.open(family.path).config)
    for row in rows:
        moe = arch.layers[row["layer"]].moe
        if moe is None or not moe.shared_width:
            assert row["shared"] is None
        else:
            assert 0 < row["shared"] <= row["dispatch"] + row["combine"]


def check_greedy(family: Any, prompt: list[int], tokens: list[int]) -> None:
    """Each is the reference's choice behind those before it, or as good."""
    logits = family.reference(prompt + tokens[:-1])[len(prompt) - 1 :]
    for row, token in zip(logits, tokens, strict=True):
        assert float(row.max() - row[token]) < GAP


@pytest.mark.parametrize("name", FEW)
def test_lanes_and_stages(families, tmp_path, name):
    """Latents and states of a lane's heads, fp8 blocks cut at their borders, and frozen streams over a stage's end."""
    family = families[name]
    for key, outs in run(family, QUICK, tmp_path).items():
        check(family, Layout(**QUICK[key]), outs)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FEW + MANY)
def test_every_layout(families, tmp_path, name, record_property):
    family = families[name]
    for key, outs in run(family, ALL, tmp_path).items():
        record_property(f"{key}, largest relative L2", f"{check(family, Layout(**ALL[key]), outs):.1e}")
