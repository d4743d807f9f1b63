"""From a config.json to the inventory of the published checkpoint, one reader a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runtime.inventory.families.deepseek import deepseek_v3
from runtime.inventory.families.gpt_oss import gpt_oss
from runtime.inventory.families.kimi_k25 import kimi_k25
from runtime.inventory.families.kimi_linear import kimi_k3, kimi_linear
from runtime.inventory.families.mixtral import mixtral
from runtime.inventory.families.qwen3 import qwen3_moe, qwen3_vl_moe
from runtime.inventory.model import Inventory
from runtime.inventory.stated import Stated
from traces.errors import CheckpointError

Reader = Callable[[Stated], Inventory]
FAMILIES: dict[str, Reader] = {
    "deepseek_v3": deepseek_v3,
    "gpt_oss": gpt_oss,
    "kimi_k2": deepseek_v3,
    "kimi_k25": kimi_k25,
    "kimi_k3": kimi_k3,
    "kimi_linear": kimi_linear,
    "mixtral": mixtral,
    "qwen3_moe": qwen3_moe,
    "qwen3_vl_moe": qwen3_vl_moe,
}


def inventory_of(config: Mapping[str, Any]) -> Inventory:
    """The tensors a checkpoint of this config holds. CheckpointError names an unknown architecture or what the config does not say."""
    kind = config.get("model_type")
    reader = FAMILIES.get(kind) if isinstance(kind, str) else None
    if reader is None:
        architecture = (config.get("architectures") or [kind])[0]
        raise CheckpointError(
            f"the tensors of the architecture {architecture} (model_type {kind}) are not known here",
            f"known model types: {', '.join(sorted(FAMILIES))}; a folder with the weights is planned from its headers",
        )
    return reader(Stated(config))
