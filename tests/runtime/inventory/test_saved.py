"""Inventories from a config.json against the headers that transformers writes for it, and against headers alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes.checkpoint import Checkpoint, read_tensors
from runtime.inventory.families import inventory_of
from runtime.inventory.headers import inventory_of_headers
from runtime.inventory.model import Inventory
from runtime.inventory.opening import open_inventory
from runtime.inventory.tensors import TensorGroup
from runtime.shipped import shapes_moe
from traces.errors import CheckpointError

COMMON = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LATENT = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 16, "n_shared_experts": 2}


def _deepseek(t: Any) -> Any:
    return t.DeepseekV3Config(
        **COMMON, **LATENT, num_key_value_heads=4, moe_intermediate_size=24, q_lora_rank=24, n_routed_experts=4, num_experts_per_tok=2,
        n_group=2, topk_group=1, first_k_dense_replace=1, num_nextn_predict_layers=0,
    )  # fmt: skip


def _kimi_linear(t: Any) -> Any:
    return t.KimiLinearConfig(
        **COMMON, **LATENT, **TOKENS, num_key_value_heads=4, moe_intermediate_size=24, q_lora_rank=None, num_local_experts=4,
        num_experts_per_tok=2, linear_head_dim=16, linear_num_heads=4,
        layer_types=["linear_attention", "full_attention", "linear_attention"], mlp_layer_types=["sparse"] * 3,
    )  # fmt: skip


def _gpt_oss(t: Any) -> Any:
    return t.GptOssConfig(**COMMON, **TOKENS, num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2)


def _mixtral(t: Any) -> Any:
    return t.MixtralConfig(**COMMON, num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "deepseek_v3": _deepseek,
    "kimi_linear": _kimi_linear,
    "gpt_oss": _gpt_oss,
    "mixtral": _mixtral,
}


@pytest.fixture(scope="module", params=list(MAKERS))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of the family, saved by transformers in bfloat16."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    folder: Path = tmp_path_factory.mktemp(request.param)
    model = transformers.AutoModelForCausalLM.from_config(MAKERS[request.param](transformers)).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def _by_name(inventory: Inventory) -> dict[str, TensorGroup]:
    return {name: group for group in inventory.groups for name in group.names()}


def test_config_and_headers_agree(saved: Path) -> None:
    """Every tensor's name and shape; and kind, share and count of parameters as told from the name alone."""
    config = inventory_of(json.loads((saved / "config.json").read_text()))
    expected, found = _by_name(config), _by_name(open_inventory(saved))
    assert set(expected) == set(found)
    for name, group in expected.items():
        other = found[name]
        assert (group.shape, group.kind, group.split, group.role) == (other.shape, other.kind, other.split, other.role), name
    assert config.parameters == open_inventory(saved).parameters


def test_headers_alone(saved: Path) -> None:
    """Tensors, bytes, the cache of a token and the experts need no config; what a token activates does."""
    tensors = read_tensors(saved)
    alone, known = inventory_of_headers(tensors), open_inventory(saved)
    assert (alone.tensors, alone.parameters, alone.stored_bytes) == (known.tensors, known.parameters, known.stored_bytes)
    assert [c.values for c in alone.caches] == [c.values for c in known.caches]
    assert [(c.state, c.conv) for c in alone.caches] == [(c.state, c.conv) for c in known.caches]
    assert alone.mixture is not None and known.mixture is not None
    assert (alone.mixture.experts, alone.mixture.inner) == (known.mixture.experts, known.mixture.inner)
    assert alone.active_parameters is None and "experts a token takes" in alone.assumptions[0]


def test_the_shipped_model() -> None:
    """Fused experts and a vision tower: the config alone gives what the real headers hold, byte for byte."""
    folder = shapes_moe()
    checkpoint = Checkpoint.open(folder)
    expected = inventory_of(checkpoint.config)
    groups = _by_name(expected)
    assert set(groups) == set(checkpoint.tensors)
    for name, entry in checkpoint.tensors.items():
        shape = groups[name].shape
        stored = (shape[0], shape[2], shape[1]) if groups[name].kind == "routed" else shape  # transformers 5 saves them transposed
        assert (stored, groups[name].dtype) == (entry.shape, entry.dtype), name
    assert expected.stored_bytes == checkpoint.stored_bytes


def test_a_folder_without_anything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_inventory(tmp_path)
    with pytest.raises(CheckpointError, match="neither a folder nor"):
        open_inventory(tmp_path / "absent")


def test_a_file_that_is_no_config_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"a": 1}')
    with pytest.raises(CheckpointError, match="model_type"):
        open_inventory(file)
    file.write_text("{")
    with pytest.raises(CheckpointError, match="JSON"):
        open_inventory(file)
