"""The inventories of published models against their published totals and tensor lists."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.budget.cache import kv_bytes_per_token
from runtime.inventory.families import FAMILIES, inventory_of
from runtime.inventory.model import Inventory
from traces.errors import CheckpointError

Published = Callable[[str], dict[str, Any]]
MODELS = next((p / "shared" / "models" for p in Path(__file__).parents if (p / "shared" / "models").is_dir()), Path("absent"))


def test_kimi_k3_totals(published: Published) -> None:
    """Four published totals of K3: tensors, parameters, stored bytes, and 104 billion active parameters."""
    k3 = inventory_of(published("kimi_k3"))
    assert (k3.tensors, k3.parameters, k3.stored_bytes) == (497_220, 2_779_931_837_184, 1_560_860_324_864)
    assert k3.active_parameters is not None and round(k3.active_parameters / 1e9) == 104
    assert k3.routed_parameters == 2_722_740_830_208


def test_kimi_k3_caches(published: Published) -> None:
    """Only the 24 latent layers grow with the context; the 69 delta layers keep 414 MiB of float32 a sequence."""
    k3 = inventory_of(published("kimi_k3"))
    assert kv_bytes_per_token(k3, 2) == 27_648
    assert Counter(cache.kind for cache in k3.caches) == {"recurrent": 69, "mla": 24}
    assert sum(cache.state for cache in k3.caches) * 4 == 414 << 20
    assert sum(cache.conv for cache in k3.caches) * 2 == 69 * 3 * 12_288 * 3 * 2


def test_what_the_kimi_k3_config_leaves_open_is_named(published: Published) -> None:
    said = " ".join(inventory_of(published("kimi_k3")).assumptions)
    assert "dtype is not in the config" in said and "A_log" in said and "ignore is not in the config" in said


def test_kimi_k3_against_its_published_tensor_list() -> None:
    listed = MODELS / "kimi_k3.tensors.json"
    config = MODELS / "kimi_k3.config.json"
    if not listed.exists() or not config.exists():
        pytest.skip("the published tensor list is not on this machine")
    expected: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    for row in json.loads(listed.read_text())["tensors"]:
        expected[(_pattern(row["name"]), tuple(row["shape"]), row["dtype"])] += row["count"]
    found: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    for group in inventory_of(json.loads(config.read_text())).groups:
        found[(_pattern(group.name), group.shape, group.dtype)] += group.copies
    assert found == expected


def _pattern(name: str) -> str:
    name = re.sub(r"^language_model\.model\.(?=layers)", "", name)
    name = re.sub(r"layers\.(\d+|N|KDA|MLA|MOE)\.", "layers.*.", name)
    name = re.sub(r"experts\.(E|\{expert\})\.", "experts.*.", name)
    return re.sub(r"blocks\.(\d+|B)\.", "blocks.*.", name)


def test_deepseek_v3_totals(published: Published) -> None:
    """671,026,419,200 without the draft layer, 91,991 tensors with it, 641 GiB."""
    v3 = inventory_of(published("deepseek_v3"))
    assert (v3.parameters, v3.routed_parameters, v3.tensors) == (671_026_419_200, 653_908_770_816, 91_991)
    assert v3.stored_bytes >> 30 == 641
    assert kv_bytes_per_token(v3, 2) == 70_272


def test_deepseek_v3_without_its_selection_biases(published: Published) -> None:
    v3 = inventory_of(published("deepseek_v3"))
    biases = sum(group.parameters for group in v3.groups if "e_score" in group.name and group.kind != "mtp")
    assert v3.parameters - biases == 671_026_404_352


def test_kimi_k25_totals(published: Published) -> None:
    """208,550 tensors, 554 GiB; 1,026,879,353,328 parameters without 60 x 384 selection biases."""
    k25 = inventory_of(published("kimi_k25"))
    assert (k25.tensors, k25.parameters, k25.stored_bytes >> 30) == (208_550, 1_026_879_353_328 + 60 * 384, 554)
    assert k25.routed_parameters == 1_014_686_023_680


@pytest.mark.parametrize(
    "field", ["moe_intermediate_size", "routed_expert_hidden_size", "num_shared_experts", "q_lora_rank", "num_experts_per_token"]
)
def test_a_missing_field_is_refused_or_counted_differently(published: Published, field: str) -> None:
    """No class default stands in. Without the latent width the model is another one, and so are its numbers."""
    config = published("kimi_k3")
    del config["text_config"][field]
    if field == "routed_expert_hidden_size":
        assert inventory_of(config).parameters != 2_779_931_837_184
        return
    with pytest.raises(CheckpointError, match=field):
        inventory_of(config)


def test_layers_that_do_not_add_up_are_refused(published: Published) -> None:
    config = published("kimi_k3")
    config["text_config"]["linear_attn_config"]["kda_layers"].pop()
    with pytest.raises(CheckpointError, match="share out the 93 layers"):
        inventory_of(config)


def test_an_unknown_architecture_is_refused_by_name(published: Published) -> None:
    with pytest.raises(CheckpointError, match="LlamaForCausalLM") as caught:
        inventory_of({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    assert all(name in caught.value.hint for name in FAMILIES)


def test_an_unknown_quantisation_is_refused_by_name(published: Published) -> None:
    config = published("deepseek_v3") | {"quantization_config": {"quant_method": "awq"}}
    with pytest.raises(CheckpointError, match="awq"):
        inventory_of(config)


def test_every_name_is_used_once(published: Published) -> None:
    for config in (published("kimi_k3"), published("deepseek_v3"), published("kimi_k25")):
        inventory: Inventory = inventory_of(config)
        names = [name for group in inventory.groups for name in group.names()]
        assert len(names) == len(set(names)) == inventory.tensors
