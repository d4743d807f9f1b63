"""The families: from config.json to an ArchSpec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runtime.arch import ArchSpec
from runtime.families.deepseek import read_deepseek_v3
from runtime.families.glm4_moe import read_glm4_moe
from runtime.families.gpt_oss import read_gpt_oss
from runtime.families.kimi import read_kimi_k3, read_kimi_k25, read_kimi_linear
from runtime.families.minimax import read_minimax_m2
from runtime.families.mixtral import read_mixtral
from runtime.families.qwen3 import read_qwen3_moe, read_qwen3_vl_moe

FAMILIES: dict[str, Callable[[Mapping[str, Any]], ArchSpec]] = {
    "deepseek_v3": read_deepseek_v3,
    "glm4_moe": read_glm4_moe,
    "gpt_oss": read_gpt_oss,
    "kimi_k25": read_kimi_k25,
    "kimi_k3": read_kimi_k3,
    "kimi_linear": read_kimi_linear,
    "minimax_m2": read_minimax_m2,
    "mixtral": read_mixtral,
    "qwen3_moe": read_qwen3_moe,
    "qwen3_vl_moe": read_qwen3_vl_moe,
}
