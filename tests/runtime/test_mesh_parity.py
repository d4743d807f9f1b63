"""Any mesh answers like one rank: logits equal transformers', drawn tokens are transformers' greedy ones, and the books add up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from runtime.layout import Layout  # noqa: E402

PROGRAM = Path(__file__).with_name("mesh_program.py")
TOLERANCE = 1e-4
GAP = 1e-3
LAYOUTS = {
    "one": {},
    "tp2": {"tp": 2},
    "pp2": {"pp": 2, "stages": (1, 2)},  # a side output of the vision tower crosses the boundary
    "dp2": {"dp": 2},
    "pp3": {"pp": 3},  # of qwen3_moe: a stage without any expert
    "tp4": {"tp": 4},  # two lanes hold the same key-value head
    "tp2pp2": {"tp": 2, "pp": 2},
    "dp2tp2": {"dp": 2, "tp": 2},
    "dp2pp2": {"dp": 2, "pp": 2, "stages": (1, 2)},
}
EACH = pytest.mark.parametrize("name", list(LAYOUTS))
FAMILIES = pytest.mark.parametrize("tiny", ["qwen3_moe", "qwen3_vl_moe"], indirect=True)
_RESULTS: dict[Path, dict[str, list[Any]]] = {}


@pytest.fixture
def mesh(tmp_path: Path):
    """mesh(tiny): what each rank of each layout computed, by the layout's name."""

    def run(tiny: Any) -> dict[str, list[Any]]:
        if tiny.path not in _RESULTS:
            prompts = [vars(p) for p in tiny.prompts]
            job = {"checkpoint": str(tiny.path), "prompts": prompts, "layouts": list(LAYOUTS.values())}
            torch.save(job, tmp_path / "job.pt")
            environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2]), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            done = subprocess.run(
                [sys.executable, str(PROGRAM), str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True, timeout=240
            )
            assert done.returncode == 0, done.stderr
            _RESULTS[tiny.path] = {
                name: [torch.load(tmp_path / f"out{n}-{r}.pt", weights_only=False) for r in range(Layout(**sizes).world)]
                for n, (name, sizes) in enumerate(LAYOUTS.items())
            }
        return _RESULTS[tiny.path]

    return run


def distance(ours, theirs) -> float:
    """Relative L2."""
    return float((ours - theirs).norm() / theirs.norm())


@FAMILIES
@EACH
def test_logits_equal_transformers_on_every_rank_of_the_last_stage(tiny, mesh, name, record_property) -> None:
    """Before and after a switch to a placement with redundant experts."""
    layout = Layout(**LAYOUTS[name])
    found = [
        distance(a, b)
        for out in mesh(tiny)[name]
        for answers in (out["whole"], out["switched"])
        for a, b in zip(answers, tiny.logits[out["place"].dp :: layout.dp] if out["place"].pp == layout.pp - 1 else [], strict=True)
    ]
    record_property("largest relative L2", f"{max(found):.1e}")
    assert len(found) == 2 * layout.tp * len(tiny.prompts) and max(found) < TOLERANCE


def teacher_forced(tiny: Any, prompt: Any, tokens: list[int]) -> Any:
    """transformers' logits [n, V] at the places where `tokens` were drawn."""
    import transformers

    kind = transformers.AutoModelForCausalLM if prompt.positions is None and "vl" not in str(tiny.path) else None
    kind = kind or transformers.Qwen3VLMoeForConditionalGeneration
    model = kind.from_pretrained(tiny.path).eval()
    ids = torch.tensor([[*prompt.tokens, *tokens]])
    extra = {}
    if prompt.patches is not None:
        extra = {
            "pixel_values": torch.from_numpy(prompt.patches),
            "image_grid_thw": torch.tensor(prompt.grids),
            "mm_token_type_ids": (ids == 300).int(),
        }
    with torch.no_grad():
        return model(input_ids=ids, **extra).logits[0, len(prompt.tokens) - 1 : -1]


@FAMILIES
def test_served_tokens_are_the_greedy_ones_of_transformers(tiny, mesh) -> None:
    pytest.importorskip("transformers")
    found = mesh(tiny)
    answers = {name: {n: t for out in outs for n, t in out["tokens"].items()} for name, outs in found.items()}
    for number, prompt in enumerate(tiny.prompts):
        one = [token for token, _, _ in answers["one"][number]]
        assert len(one) == 6
        logits = teacher_forced(tiny, prompt, one)
        top = logits.topk(2).values
        decided = (top[:, 0] - top[:, 1] > GAP).tolist()
        if number:  # the first is drawn with a temperature
            assert all(a == b for a, b, sure in zip(one, logits.argmax(-1).tolist(), decided, strict=True) if sure)
        for name in LAYOUTS:
            assert [token for token, _, _ in answers[name][number]] == one, (name, number)
            for (_, a, top_a), (_, b, top_b) in zip(answers[name][number], answers["one"][number], strict=True):
                assert abs(a - b) < 1e-3 and [t for t, _ in top_a] == [t for t, _ in top_b]


@FAMILIES
@EACH
def test_only_the_first_rank_of_a_replica_speaks_and_nothing_stays_lent(tiny, mesh, name) -> None:
    for out in mesh(tiny)[name]:
        assert bool(out["tokens"]) == (out["place"].pp == 0 and out["place"].tp == 0)
        assert out["free"] == 40


@FAMILIES
@EACH
def test_collectives_join_and_every_byte_arrives(tiny, mesh, name) -> None:
    """On (group, seq): the same operation at every end, and what i sent to j is what j received from i."""
    joined: dict[Any, list[Any]] = defaultdict(list)
    for out in mesh(tiny)[name]:
        for row in out["collectives"]:
            joined[row["group"], row["seq"]].append(row)
    for (group, _), rows in joined.items():
        size = len(rows[0]["sent"])
        assert len(rows) == size and len({(r["op"], r["layer"], r["step"]) for r in rows}) == 1, group
        sent = sorted(tuple(r["sent"]) for r in rows)
        assert sum(map(sum, sent)) == sum(sum(r["received"]) for r in rows)
    layout = Layout(**LAYOUTS[name])
    kinds = {group.rstrip("0123456789.") for group, _ in joined}
    assert kinds == {"ep"} | ({"tp"} if layout.tp > 1 else set()) | ({"pp"} if layout.pp > 1 else set())


@FAMILIES
@EACH
def test_step_rows_count_every_token_once_in_each_stage(tiny, mesh, name) -> None:
    layout = Layout(**LAYOUTS[name])
    per_stage: dict[int, int] = defaultdict(int)
    for out in mesh(tiny)[name]:
        rows = out["tables"]["step"]
        assert {(r["stage"]) for r in rows} == {out["place"].pp}
        assert {r["step"] for r in rows} == set(range(1, out["steps"] + 1))
        per_stage[out["place"].pp] += sum(r["prefill_tokens"] + r["decode_tokens"] for r in rows)
        if layout.pp > 1:
            assert max(r["micro_batch"] for r in rows) > 0
    expected = sum(len(p.tokens) + 5 for p in tiny.prompts)
    assert dict(per_stage) == dict.fromkeys(range(layout.pp), expected)


@FAMILIES
@EACH
def test_expert_counts_add_up_over_the_ranks_of_a_stage(tiny, mesh, name) -> None:
    layers: dict[int, list[Any]] = defaultdict(list)
    for out in mesh(tiny)[name]:
        for row in out["tables"].get("expert_load", []):
            layers[row["layer"]].append(row)
    tokens = sum(len(p.tokens) + 5 for p in tiny.prompts)
    for rows in layers.values():
        assert sum(sum(r["tokens"]) for r in rows) == sum(sum(r["physical"]) for r in rows) == tokens * 2
        assert sum(r["tokens_in"] for r in rows) == tokens


@pytest.mark.parametrize("tiny", ["qwen3_moe"], indirect=True)
def test_a_rank_reads_only_its_part(tiny, mesh) -> None:
    found = mesh(tiny)
    whole = found["one"][0]["loaded"]
    for name in ("tp2", "pp2", "tp4", "tp2pp2"):
        shares = [out["loaded"] for out in found[name]]
        assert max(shares) < 0.75 * whole if name in ("tp2", "pp2") else max(shares) < 0.45 * whole, name
        assert sum(shares) < 1.2 * whole, name  # norms, routers and, in tp4, key-value heads are there more than once
