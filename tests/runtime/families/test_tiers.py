"""Experts in tiers: the answers of the resident model, bit by bit, within the budget; and what is recorded of it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from probes.checkpoint import Checkpoint  # noqa: E402
from runtime.arch import read_arch  # noqa: E402
from runtime.batch import ForwardBatch, StepContext  # noqa: E402
from runtime.mesh import Mesh  # noqa: E402
from runtime.model import MoeModel  # noqa: E402
from runtime.placement import Placement  # noqa: E402
from runtime.serve_config import ServeConfig  # noqa: E402
from runtime.tiers.shelf import HALF_LIFE, Shelf  # noqa: E402
from traces import schema  # noqa: E402
from traces.errors import CheckpointError, UsageError  # noqa: E402

EXPERT = (2 * 24 * 64 + 64 * 24) * 4  # bytes in float32: gate, up and down of the tiny models (24 wide, 64 hidden)


class Rows:
    """A recorder that keeps rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict]] = []

    def row(self, table, **values) -> None:
        self.rows.append((table.name, values))

    def writer(self, table):
        return lambda *values: self.rows.append((table.name, dict(zip([c.name for c in table.columns], values, strict=True))))


def model_of(path, **settings) -> MoeModel:
    checkpoint = Checkpoint.open(path)
    return MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.alone(), **settings)


def answers(model: MoeModel, tokens: list[int], steps: int = 6) -> list:
    """Logits of a prompt and of greedy decoding behind it."""
    kv = model.kv_cache(16, 16)
    table = [torch.tensor(kv.allocator.allocate(8))]
    found, cached = [], 0
    for step in range(steps):
        count = len(tokens) - cached
        batch = ForwardBatch(
            torch.tensor(tokens[cached:]), torch.arange(cached, cached + count).expand(3, -1), torch.tensor([0, count]),
            torch.tensor([cached]), table, torch.tensor([count - 1]),
        )  # fmt: skip
        found.append(model.forward(batch, kv, StepContext(step)))
        cached = len(tokens)
        tokens = [*tokens, int(found[-1].argmax())]
    return found


@pytest.mark.parametrize("frames", [2, 3, 7, 100])
def test_answers_are_those_of_the_resident_model(tiny_qwen3_moe, frames):
    """From two frames for sixteen experts (two mixtures of eight) to more than there are."""
    prompt = tiny_qwen3_moe.prompts[0].tokens
    expected = answers(model_of(tiny_qwen3_moe.path), prompt)
    rows = Rows()
    model = model_of(tiny_qwen3_moe.path, expert_memory=frames * EXPERT, recorder=rows)
    found = answers(model, prompt)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    held = sum(part.nbytes for part in model.tier.memory.parts())
    assert held == min(frames, 16) * EXPERT
    model.tier.close()
    total = model.tier.account.total
    assert total.miss_bytes == total.promoted * EXPERT  # stored and kept in float32: a byte read is a byte kept
    assert total.promoted - total.demoted == min(frames, 16)
    assert (total.misses == 0) == (frames == 100)


def test_identities_are_those_of_the_resident_model(tiny_qwen3_moe):
    whole, tiers = model_of(tiny_qwen3_moe.path), model_of(tiny_qwen3_moe.path, expert_memory=2 * EXPERT)
    assert tiers.identity.hashes == whole.identity.hashes
    tiers.tier.close()


def test_transformers_logits_with_biased_fused_experts(families):
    """gpt_oss: experts of one fused tensor, with biases, against what transformers answered."""
    family = families["gpt_oss"]
    whole = model_of(family.path)
    nbytes = sum(part[0].nbytes for part in next(iter(whole.mixtures.values())).weights.bank.parts())
    tiers = model_of(family.path, expert_memory=3 * nbytes)
    prompt = family.prompts[0]
    ours = answers(tiers, prompt, steps=1)[0][0]
    theirs = family.logits[0][len(prompt) - 1]
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-4
    tiers.tier.close()


def test_what_is_recorded(tiny_qwen3_moe):
    rows = Rows()
    model = model_of(tiny_qwen3_moe.path, expert_memory=4 * EXPERT, recorder=rows)
    answers(model, tiny_qwen3_moe.prompts[0].tokens)
    model.tier.close()
    events = [values for name, values in rows.rows if name == schema.EVENT.name and values["kind"] == "expert_tier"]
    attrs = events[-1]["attrs"]
    assert (attrs["frames"], attrs["experts"], attrs["frame_bytes"]) == (4, 16, EXPERT)
    assert attrs["step_last"] == 5 and attrs["misses"] > 0 and attrs["stall_ns"] > 0
    assert json.loads(json.dumps(attrs)) == attrs
    (plan,) = [values["attrs"] for _, values in rows.rows if values.get("kind") == "load_plan"]
    tensors = [t for name, t in vars_of(model) if ".experts." not in name]
    assert plan["planned_kept"] == sum(tensors) + 4 * EXPERT


def vars_of(model: MoeModel) -> list[tuple[str, int]]:
    from runtime.plan import plan_rank

    plan = plan_rank(model.checkpoint, model.arch, Placement.contiguous(2, 8, 1), 0)
    return [(name, torch.Size(shape).numel() * 4) for name, shape in plan.targets.items()]


def test_a_file_that_changes_is_noticed(tiny_qwen3_moe, tmp_path):
    copy = shutil.copytree(tiny_qwen3_moe.path, tmp_path / "copy")
    model = model_of(copy, expert_memory=2 * EXPERT)
    for shard in copy.glob("*.safetensors"):
        os.utime(shard)
    with pytest.raises(CheckpointError, match="changed while it was served"):
        answers(model, tiny_qwen3_moe.prompts[0].tokens)
    model.tier.close()


@pytest.mark.timeout(60)
def test_a_read_that_fails_behind_one_that_worked_ends_the_step_and_the_reader(tiny_qwen3_moe):
    """What the step held when it failed is never released: the reader must not wait for it."""
    model = model_of(tiny_qwen3_moe.path, expert_memory=2 * EXPERT)
    true, reads = model.tier.source.read, []

    def failing(key, memory, frame):
        reads.append(key)
        if len(reads) == 2:
            raise CheckpointError("the disk is gone")
        return true(key, memory, frame)

    model.tier.source.read = failing
    with pytest.raises(CheckpointError, match="the disk is gone"):
        answers(model, list(range(40)))
    deadline = time.monotonic() + 5  # the reader comes to an expert for which there is no frame
    while len(reads) < 3 or not model.tier._pending[reads[-1]].done():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1)
    closing = threading.Thread(target=model.tier.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


def test_refusals(tiny_qwen3_moe):
    with pytest.raises(UsageError, match="holds 1 experts"):
        model_of(tiny_qwen3_moe.path, expert_memory=2 * EXPERT - 1)
    with pytest.raises(UsageError, match="do not work together"):
        ServeConfig(model="m", expert_memory="1GiB", redundant_experts=2).checked()
    with pytest.raises(UsageError, match="is no size"):
        ServeConfig(model="m", expert_memory="much").checked()
    model = model_of(tiny_qwen3_moe.path, expert_memory=2 * EXPERT)
    with pytest.raises(UsageError, match="cannot be placed anew"):
        model.stage_placement(model.placement)
    model.tier.close()


def test_the_rarely_needed_goes_first():
    shelf = Shelf(2)
    for key in ((0, 0), (0, 1)):
        shelf.need([key])
        shelf.put(key, shelf.take(wait=True))
    for step in range(5):
        shelf.step = step
        shelf.need([(0, 0)])
    shelf.need([(0, 2)])
    assert shelf.take(wait=True) == shelf_frame_of_one(shelf)
    assert shelf.frame_of((0, 0)) is not None and shelf.frame_of((0, 1)) is None


def shelf_frame_of_one(shelf: Shelf) -> int:
    return 1 - shelf.frame_of((0, 0))


def test_a_need_halves():
    shelf = Shelf(2)
    for slot, times in ((0, 3), (1, 1)):
        for _ in range(times):
            shelf.need([(0, slot)])
        shelf.put((0, slot), shelf.take(wait=True))
    shelf.step = 2 * HALF_LIFE  # 3 has become 0.75
    shelf.need([(0, 1)])  # 0.25 + 1
    shelf.release((0, 1))
    shelf.take(wait=True)
    assert shelf.frame_of((0, 0)) is None


def test_without_waiting_what_is_held_stays():
    shelf = Shelf(1)
    shelf.need([(0, 0)])
    shelf.put((0, 0), shelf.take(wait=True))
    assert shelf.take(wait=False) is None
