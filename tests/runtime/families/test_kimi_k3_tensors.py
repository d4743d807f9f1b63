"""Kimi K3 as published: from its config alone, every tensor of its list has a destination of the right shape, and none is left over."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from probes.checkpoint import ITEM_BYTES, Checkpoint, TensorEntry
from runtime.arch import ArchSpec, read_arch
from runtime.layout import Layout
from runtime.placement import Placement
from runtime.plan import plan_rank
from traces.errors import CheckpointError

MODELS = next((p / "shared/models" for p in Path(__file__).parents if (p / "shared/models").is_dir()), Path("shared/models"))
CONFIG, LIST = MODELS / "kimi_k3.config.json", MODELS / "kimi_k3.tensors.json"
pytestmark = pytest.mark.skipif(not LIST.exists(), reason=f"the published tensor list is not here: {LIST}")


@pytest.fixture(scope="module")
def arch() -> ArchSpec:
    return read_arch(json.loads(CONFIG.read_text()))


@pytest.fixture(scope="module")
def tensors(arch) -> dict[str, TensorEntry]:
    """The patterns written out, with their places in one imaginary file."""
    full = {4 * n for n in range(1, 24)} | {93}  # layers of latent attention, counted from 1
    kinds = {
        "N": range(93), "KDA": [i for i in range(93) if i + 1 not in full], "MLA": [i - 1 for i in sorted(full)], "MOE": range(1, 93),
    }  # fmt: skip
    found: dict[str, TensorEntry] = {}
    offset = 0
    for pattern in json.loads(LIST.read_text())["tensors"]:
        names = [pattern["name"]]
        for kind, layers in kinds.items():
            at = f"layers.{kind}."
            if pattern["name"].startswith(at):
                names = [f"layers.{i}.{pattern['name'].removeprefix(at)}" for i in layers]
        names = [n.replace("experts.E.", f"experts.{e}.") for n in names for e in (range(896) if "experts.E." in n else [0])]
        names = [n.replace("blocks.B.", f"blocks.{b}.") for n in names for b in (range(27) if "blocks.B." in n else [0])]
        names = [n if not n.startswith("layers.") else f"language_model.model.{n}" for n in names]
        assert len(names) == pattern["count"], pattern["name"]
        size = math.prod(pattern["shape"]) * ITEM_BYTES[pattern["dtype"]]
        for name in names:
            found[name] = TensorEntry("all", pattern["dtype"], tuple(pattern["shape"]), offset, size)
            offset += size
    return found


@pytest.fixture(scope="module")
def beginning(arch, tensors) -> tuple[ArchSpec, dict[str, TensorEntry]]:
    """The first five layers: one dense, four mixtures, one of them with latent attention."""
    later = tuple(f"language_model.model.layers.{i}." for i in range(5, 93))
    return replace(arch, layers=arch.layers[:5]), {name: entry for name, entry in tensors.items() if not name.startswith(later)}


def plan(arch: ArchSpec, tensors: dict[str, TensorEntry], rank: int = 7, ranks: int = 896):
    placement = Placement.contiguous(len(arch.moe_layers), arch.moe.experts, ranks)
    return plan_rank(Checkpoint(MODELS, {}, tensors), arch, placement, rank)


def test_layers_and_kinds(arch):
    kinds = defaultdict(int)
    for layer in arch.layers:
        kinds[layer.attention.kind] += 1
    assert kinds == {"kda": 69, "mla": 24} and len(arch.moe_layers) == 92
    assert [i for i, layer in enumerate(arch.layers) if layer.freezes] == list(range(0, 93, 12))
    assert (arch.moe.latent, arch.moe.shared_width, arch.moe.router.top_k) == (3584, 6144, 16)
    assert sum(math.prod(layer.attention.cache_shape) for layer in arch.layers) * 2 == 27_648  # bytes a token in bfloat16
    assert arch.key("head") == "language_model.lm_head.weight" and arch.quant is not None and arch.quant.kind == "mxfp4"


def test_every_published_tensor_has_a_destination(arch, tensors):
    """A rank that holds one expert a layer reads everything but the other 895, and the padding of A_log."""
    assert len(tensors) == 497_220
    found = plan(arch, tensors)
    covered = defaultdict(int)
    for part in found.parts:
        covered[part.target] += part.values
    assert {name: math.prod(shape) for name, shape in found.targets.items()} == dict(covered)
    read = {part.tensor for part in found.parts} | {part.scales.tensor for part in found.parts if part.scales is not None}
    assert [n for n in tensors if n not in read and ".experts." not in n] == []
    experts = sum(entry.nbytes for name, entry in tensors.items() if ".experts." in name)
    padding = 69 * (128 - 96) * 4
    assert found.bytes_read == sum(entry.nbytes for entry in tensors.values()) - experts * 895 // 896 - padding
    vision = [name for name in tensors if name.startswith(("vision_tower.", "mm_projector."))]
    assert len(vision) == 168 and {f"vision.{name}" for name in vision} <= set(found.targets) and found.notes == []


def test_only_the_first_lane_of_the_first_stage_reads_the_tower(beginning):
    """Two stages of two lanes of 448 replicas: one rank in four."""
    arch, tensors = beginning
    layout = Layout(pp=2, dp=448, tp=2)
    placement = Placement.contiguous(len(arch.moe_layers), arch.moe.experts, layout.ep)
    for rank in (0, 1, 896):
        found = plan_rank(Checkpoint(MODELS, {}, tensors), arch, placement, rank, layout)
        assert sum(name.startswith("vision.") for name in found.targets) == (168 if rank == 0 else 0)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("language_model.model.layers.4.self_attn.A_log", "A_log is missing"),
        ("language_model.model.layers.4.block_sparse_moe.experts.895.w3.weight_scale", "experts.895.w3.weight_scale are missing"),
        ("language_model.model.output_attn_res_proj.weight", "output_attn_res_proj.weight is missing"),
        ("vision_tower.encoder.blocks.26.mlp.fc1.weight", "blocks.26.mlp.fc1.weight is missing"),
    ],
)
def test_a_missing_tensor_is_named(beginning, name, says):
    arch, tensors = beginning
    with pytest.raises(CheckpointError, match=says):
        plan(arch, {key: entry for key, entry in tensors.items() if key != name})


def test_a_tensor_too_many_is_named(beginning):
    arch, tensors = beginning
    extra = {"language_model.model.layers.93.input_layernorm.weight": tensors["language_model.model.norm.weight"]}
    with pytest.raises(CheckpointError, match=r"1 tensors .* unknown to KimiK3.*layers\.93\.input_layernorm"):
        plan(arch, tensors | extra)


def test_a_shorter_decay_is_refused(beginning):
    arch, tensors = beginning
    name = "language_model.model.layers.0.self_attn.A_log"
    entry = tensors[name]
    short = TensorEntry(entry.file, entry.dtype, (64,), entry.offset, 256)
    with pytest.raises(CheckpointError, match=r"A_log .* has shape \[64\], expected \[96\]"):
        plan(arch, tensors | {name: short})
