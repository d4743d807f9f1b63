"""GLM-4.5/4.6 (glm4_moe), as transformers 5.24 computes it: DeepSeek-V3's mixture behind grouped-query attention that turns half a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.arch import ArchSpec, LayerSpec, MoeSpec
from runtime.config_reader import ConfigReader
from runtime.families.common import (
    GQA,
    MLP,
    MLP_EXPERTS,
    NORMS,
    head_dim,
    layer_keys,
    predictors,
    read_gqa,
    read_rope,
    silu_only,
    sizes,
    tokens,
)
from runtime.families.deepseek import read_sigmoid_router


def read_glm4_moe(config: Mapping[str, Any]) -> ArchSpec:
    """q, k and v may have biases, the output projection has none."""
    text = ConfigReader(config)
    silu_only(text)
    attention = read_gqa(text, bias=text.flag("attention_bias"), qk_norm="head" if text.flag("use_qk_norm") else None)
    experts, width = text.integer("n_routed_experts", "num_local_experts"), text.integer("moe_intermediate_size")
    shared = width * text.integer("n_shared_experts", default=0)
    moe = MoeSpec(experts, width, read_sigmoid_router(text, experts), shared_width=shared)
    dense = LayerSpec(attention, None, text.integer("intermediate_size"))
    first, count = text.integer("first_k_dense_replace", default=1), text.integer("num_hidden_layers")
    return ArchSpec(
        family="glm4_moe",
        architecture="Glm4MoeForCausalLM",
        layers=tuple(dense if i < first else LayerSpec(attention, moe) for i in range(count)),
        rope=read_rope(text, head_dim(text), theta=1e4),
        keys=layer_keys("model.", NORMS, GQA, MLP, MLP_EXPERTS),
        tokens=tokens(text, text),
        tied_embeddings=text.flag("tie_word_embeddings"),
        skipped=predictors(text, "model."),
        **sizes(text, eps=1e-5),
    )
