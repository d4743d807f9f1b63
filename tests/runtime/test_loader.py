"""Loading: every dtype and expert layout arrives exactly; damage is refused by name; failed reads are repeated and counted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from probes.checkpoint import Checkpoint
from runtime.arch import read_arch
from runtime.expert_layout import OVERRIDE
from runtime.load_mode import LoadSettings
from runtime.loader import Loader
from runtime.placement import Placement
from runtime.plan import plan_rank
from traces import schema
from traces.errors import CheckpointError

torch = pytest.importorskip("torch")


@pytest.fixture(params=["qwen3_moe", "qwen3_vl_moe"])
def source(request):
    return request.getfixturevalue(f"tiny_{request.param}").path


@pytest.fixture
def copy(source, tmp_path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "copy"))


def all_tensors(folder: Path) -> dict:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def rewrite(folder: Path, change) -> None:
    """Applies `change(tensors)` to all weights and saves them as one file."""
    tensors = all_tensors(folder)
    change(tensors)
    for file in folder.glob("model*"):
        file.unlink()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


class Rows(list):
    def row(self, table, **values):
        if table is schema.LOAD:  # events say what is planned, before
            self.append((table.name, values))

    def writer(self, table):
        raise NotImplementedError


def load(folder: Path, rank: int = 0, ranks: int = 1, settings: LoadSettings | None = None, dtype=None, recorder=None, progress=None):
    checkpoint = Checkpoint.open(folder)
    arch = read_arch(checkpoint.config)
    placement = Placement.contiguous(len(arch.moe_layers), arch.moe.experts, ranks)
    plan = plan_rank(checkpoint, arch, placement, rank)
    loader = Loader(folder, dtype or torch.float32, rank=rank, recorder=recorder, progress=progress, settings=settings or LoadSettings())
    return arch, plan, loader.load(plan)


def expected_experts(folder: Path, arch, layer: int) -> tuple:
    """(gate_up [E, 2I, H], down [E, H, I]) as transformers builds them in memory."""
    transformers = pytest.importorskip("transformers")
    kind = "AutoModelForCausalLM" if arch.vision is None else "AutoModelForImageTextToText"
    model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32)
    text = model.model if arch.vision is None else model.model.language_model
    experts = text.layers[layer].mlp.experts
    return experts.gate_up_proj.detach(), experts.down_proj.detach()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_stored_dtypes_become_the_compute_dtype_exactly(copy, dtype):
    rewrite(copy, lambda tensors: tensors.update({name: t.to(getattr(torch, dtype)) for name, t in tensors.items()}))
    arch, _, targets = load(copy)
    tensors = all_tensors(copy)
    assert torch.equal(targets["embed"], tensors[arch.key("embed")].float())
    stacked = torch.cat([tensors[arch.key(name, layer=2)].float() for name in ("q", "k", "v")])
    assert torch.equal(targets["layers.2.qkv"], stacked)
    assert all(t.dtype == torch.float32 for t in targets.values())


def test_experts_equal_transformers(source):
    arch, _, targets = load(source)
    for layer in arch.moe_layers:
        gate_up, down = expected_experts(source, arch, layer)
        assert torch.equal(targets[f"layers.{layer}.experts.gate_up"], gate_up)
        assert torch.equal(targets[f"layers.{layer}.experts.down"], down)


@pytest.mark.parametrize("settings", [LoadSettings(chunk=8192), LoadSettings(chunk=10_000, threads=1), LoadSettings(direct_from=0)])
def test_chunking_and_direct_reads_change_nothing(source, settings):
    _, _, whole = load(source)
    _, _, pieces = load(source, settings=settings)
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


def test_a_rank_reads_its_own_experts_only(source):
    arch, plan, whole = load(source)
    halves = [load(source, rank, 2) for rank in range(2)]
    assert plan.bytes_read == Checkpoint.open(source).stored_bytes
    for layer in arch.moe_layers:
        for name in (f"layers.{layer}.experts.gate_up", f"layers.{layer}.experts.down"):
            assert torch.equal(torch.cat([targets[name] for _, _, targets in halves]), whole[name])
    experts = sum(whole[f"layers.{i}.experts.{n}"].nbytes for i in arch.moe_layers for n in ("gate_up", "down"))
    assert [p.bytes_read for _, p, _ in halves] == [plan.bytes_read - experts // 2] * 2


def transpose_experts(tensors):
    for name in tensors:
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = tensors[name].transpose(1, 2)


def test_published_fused_layout_is_recognised(tiny_qwen3_vl_moe, tmp_path):
    folder = Path(shutil.copytree(tiny_qwen3_vl_moe.path, tmp_path / "published"))
    _, _, saved = load(folder)
    rewrite(folder, transpose_experts)
    _, _, published = load(folder, settings=LoadSettings(chunk=8192))
    assert all(torch.equal(saved[name], published[name]) for name in saved)


@pytest.mark.parametrize(("width", "square"), [(32, "gate_up_proj"), (64, "down_proj")])
def test_square_experts_are_refused_and_can_be_overridden(tmp_path, monkeypatch, width, square):
    """With 2I == H or I == H a transposed file has the shape of a plain one."""
    transformers = pytest.importorskip("transformers")
    text = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": width, "max_position_embeddings": 64}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64, "num_position_embeddings": 4}
    config = transformers.Qwen3VLMoeConfig(text_config=text, vision_config={**vision, "deepstack_visual_indexes": [0]})
    transformers.Qwen3VLMoeForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    assert square in caught.value.message and "square" in caught.value.message and OVERRIDE in caught.value.hint
    monkeypatch.setenv(OVERRIDE, "out_in")
    arch, _, plain = load(tmp_path)
    assert torch.equal(plain["layers.0.experts.down"], expected_experts(tmp_path, arch, 0)[1])
    rewrite(tmp_path, transpose_experts)
    monkeypatch.setenv(OVERRIDE, "in_out")
    _, _, transposed = load(tmp_path)
    assert all(torch.equal(plain[name], transposed[name]) for name in plain)
    monkeypatch.setenv(OVERRIDE, "sideways")
    with pytest.raises(CheckpointError, match="sideways"):
        load(tmp_path)


def test_tied_embeddings_need_no_head(tiny_qwen3_moe, tmp_path):
    folder = Path(shutil.copytree(tiny_qwen3_moe.path, tmp_path / "tied"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    _, _, targets = load(folder)
    assert "head" not in targets


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_named(copy, value):
    def spoil(tensors):
        name = next(name for name in sorted(tensors) if name.endswith("layers.1.self_attn.o_proj.weight"))
        tensors[name][3, 5] = value

    rewrite(copy, spoil)
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.o_proj\.weight in model\.safetensors has 1 non-finite"):
        load(copy)


def drop(tensors, name):
    del tensors[name]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: drop(t, "lm_head.weight"), "tensor lm_head.weight is missing"),
        (lambda t: t.update(stranger=torch.ones(2)), "unknown to .* first stranger"),
        (lambda t: t.update({"lm_head.weight": torch.ones(320, 63)}), r"lm_head.weight .* shape \[320, 63\], expected \[320, 64\]"),
        (lambda t: t.update({"lm_head.weight": torch.ones(320, 64, dtype=torch.int8)}), "lm_head.weight .* dtype I8"),
        (lambda t: t.update({"lm_head.weight": torch.ones(320, 64).to(torch.float8_e4m3fn)}), "lm_head.weight .* dtype F8_E4M3"),
    ],
    ids=["missing", "extra", "shape", "dtype", "fp8"],
)
def test_disagreement_with_the_config_is_named_before_any_weight_is_read(copy, change, says, monkeypatch):
    rewrite(copy, change)
    monkeypatch.setattr(os, "preadv", None)  # any read of weights would fail differently
    with pytest.raises(CheckpointError, match=says) as caught:
        load(copy)
    assert caught.value.hint


def test_a_missing_expert_of_another_rank_is_found(tiny_qwen3_moe, tmp_path):
    folder = Path(shutil.copytree(tiny_qwen3_moe.path, tmp_path / "copy"))
    rewrite(folder, lambda tensors: drop(tensors, "model.layers.0.mlp.experts.7.down_proj.weight"))
    with pytest.raises(CheckpointError, match=r"experts\.7\.down_proj"):
        load(folder, rank=0, ranks=4)


class FlakyDisk:
    """os.preadv whose first `failures` calls fail, and which never returns more than `most` bytes at once."""

    def __init__(self, failures: int, most: int = 1 << 30) -> None:
        self.failures = failures
        self.most = most

    def __call__(self, fd, buffers, offset):
        if self.failures > 0:
            self.failures -= 1
            raise OSError(5, "Input/output error")
        return os.preadv(fd, [buffers[0][: self.most]], offset)


def test_failed_reads_are_repeated_and_counted(source):
    _, _, expected = load(source)
    rows = Rows()
    _, _, targets = load(source, settings=LoadSettings(threads=1, pread=FlakyDisk(2, most=1000)), recorder=rows)
    assert all(torch.equal(expected[name], targets[name]) for name in expected)
    assert sum(values["retries"] for _, values in rows) == 2


def test_a_disk_that_keeps_failing_is_named(source):
    with pytest.raises(CheckpointError, match=r"safetensors cannot be read .* after 2 attempts: .*Input/output error"):
        load(source, settings=LoadSettings(threads=1, retries=1, pread=FlakyDisk(99)))


def test_a_file_truncated_after_its_header_was_read_is_refused(copy):
    checkpoint = Checkpoint.open(copy)
    arch = read_arch(checkpoint.config)
    plan = plan_rank(checkpoint, arch, Placement.contiguous(len(arch.moe_layers), 8, 1), 0)
    file = copy / checkpoint.files[-1]
    os.truncate(file, file.stat().st_size - 4)
    with pytest.raises(CheckpointError, match=rf"{file.name} .* truncated"):
        Loader(copy, torch.float32, settings=LoadSettings(retries=0)).load(plan)


def test_load_rows_and_progress_account_for_every_byte(source):
    rows, seen = Rows(), []
    _, plan, targets = load(source, recorder=rows, progress=lambda done, total: seen.append((done, total)), dtype=torch.bfloat16)
    assert {values["file"] for _, values in rows} == {part.file for part in plan.parts}
    assert sum(values["bytes_read"] for _, values in rows) == plan.bytes_read
    assert sum(values["bytes_kept"] for _, values in rows) == sum(t.nbytes for t in targets.values()) == plan.bytes_read // 2
    columns = {column.name: column for column in schema.LOAD.columns}
    for name, values in rows:
        assert name == "load" and set(values) <= set(columns)
        assert all(column.nullable for column in columns.values() if column.name not in values)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (plan.bytes_read, plan.bytes_read)


def test_headers_agree_with_the_library(source):
    for name, entry in Checkpoint.open(source).tensors.items():
        with safe_open(source / entry.file, framework="pt") as library:
            assert tuple(library.get_slice(name).get_shape()) == entry.shape
