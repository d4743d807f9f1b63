"""What ranks of every family hold beside their experts is what torch and the published names cut out of files that others wrote."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

FAMILIES = (
    "mixtral", "deepseek_v3", "deepseek_v3_fp8", "gpt_oss", "gpt_oss_mxfp4", "kimi_linear", "kimi_k25", "kimi_k3", "glm4_moe", "minimax_m2",
)  # fmt: skip
# eh_proj: of a draft layer. The vision tensors of kimi_k25 here: its config describes no tower.
LEFT_OUT = re.compile(r"rotary_emb|\.experts\.|eh_proj")


def stored(path: Path) -> Any:
    """The files' tensors; what the config says of them is not asked for here."""
    from probes.checkpoint import read_config
    from runtime.verification.header_file import read_header_file
    from runtime.verification.headers import Examined
    from runtime.verification.stored_values import StoredValues

    return StoredValues(Examined(path, read_config(path), [read_header_file(file) for file in sorted(path.glob("*.safetensors"))]))


def told_by(path: Path, lanes: int, dtype: str) -> list[Any]:
    """What each lane of one replica would say of a checkpoint."""
    import torch

    from probes.checkpoint import Checkpoint
    from runtime.arch import read_arch
    from runtime.layout import Layout
    from runtime.loader import Loader
    from runtime.placement import Placement
    from runtime.plan import plan_rank
    from runtime.verification.live_weights import Told
    from runtime.weight_hash import weight_facts

    checkpoint = Checkpoint.open(path)
    arch = read_arch(checkpoint.config)
    placement = Placement.contiguous(len(arch.moe_layers), arch.moe.experts, lanes)
    told = []
    for lane in range(lanes):
        plan = plan_rank(checkpoint, arch, placement, lane, Layout(tp=lanes)).without_experts()
        told.append(Told(lane, lane, lanes, weight_facts(Loader(path, getattr(torch, dtype)).load(plan))))
    return told


@pytest.mark.parametrize(("lanes", "dtype"), [(1, "bfloat16"), (2, "float32"), (4, "float32")])
@pytest.mark.parametrize("name", FAMILIES)
def test_everything_but_the_experts_is_proven(name: str, lanes: int, dtype: str, families: Any) -> None:
    from runtime.verification.live_weights import compare_weights

    values = stored(families[name].path)
    found = compare_weights(values, told_by(families[name].path, lanes, dtype))
    assert not found.problems and not found.unknown
    blind = name == "kimi_k25"
    left = [one for one in values.entries if one not in found.proven and not LEFT_OUT.search(one)]
    assert [one for one in left if not (blind and one.startswith("vision_tower."))] == []


def test_exchanged_lanes_and_layers_are_named(families: Any) -> None:
    from dataclasses import replace

    from runtime.verification.live_weights import compare_weights

    path = families["glm4_moe"].path
    first, second = told_by(path, 2, "float32")
    wrong = dict(first.targets) | {"layers.1.qkv": second.targets["layers.1.qkv"], "layers.0.ffn_norm": first.targets["layers.2.ffn_norm"]}
    found = compare_weights(stored(path), [replace(first, targets=wrong), second])
    assert [problem.detail for problem in found.problems] == [
        "rank 0 is to hold lane 0's part of layers.0.ffn_norm and holds lane 0's part of layers.2.ffn_norm",
        "rank 0 is to hold lane 0's part of layers.1.qkv and holds lane 1's part of layers.1.qkv",
    ]
    assert "model.layers.1.self_attn.k_proj.weight" not in found.proven and "model.layers.1.self_attn.o_proj.weight" in found.proven


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "deepseek_v3_fp8", "gpt_oss", "kimi_linear", "glm4_moe", "minimax_m2"])
def test_experts_are_those_of_the_files(name: str, dtype: str, families: Any) -> None:
    import torch

    from probes.checkpoint import Checkpoint
    from runtime.arch import read_arch
    from runtime.loader import Loader
    from runtime.placement import Placement
    from runtime.plan import plan_rank
    from runtime.verification.live import LayerSlots, compare_slots
    from runtime.weight_hash import hex_hash, layer_hashes
    from runtime.weights import ExpertBank

    path = families[name].path
    checkpoint = Checkpoint.open(path)
    arch = read_arch(checkpoint.config)
    layer, experts = arch.moe_layers[-1], arch.moe.experts
    backwards = tuple(reversed(range(experts)))
    placement = Placement(0, (backwards,) * len(arch.moe_layers), 1)
    targets = Loader(path, getattr(torch, dtype)).load(plan_rank(checkpoint, arch, placement, 0))
    hashes = [hex_hash(value) for value in layer_hashes([ExpertBank.of(targets, layer)])[0].tolist()]
    assert not list(compare_slots(stored(path), LayerSlots(layer, list(backwards), hashes), dtype))
    wrong = list(compare_slots(stored(path), LayerSlots(layer, list(range(experts)), hashes), dtype))
    assert len(wrong) == experts and wrong[0].detail == f"it is to hold expert 0 and holds expert {experts - 1}"
