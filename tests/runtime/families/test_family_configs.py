"""Published configurations become the right ArchSpec; what cannot be computed, or contradicts itself, is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from runtime.arch import AttentionSpec, KdaSpec, MlaSpec, MoonVitSpec, QuantSpec, read_arch
from traces.errors import CheckpointError

# The fields that matter, as published.
MIXTRAL_8X7B = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1,
    "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": False,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "eos_token_id": 200002, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072, "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
    "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip
KIMI_LINEAR_48B = {
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "bos_token_id": 163584, "eos_token_id": 163586,
    "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304, "intermediate_size": 9216, "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
    },
    "mla_use_nope": True, "model_max_length": 1048576, "moe_intermediate_size": 1024, "moe_layer_freq": 1, "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid", "num_attention_heads": 32, "num_expert_group": 1, "num_experts": 256,
    "num_experts_per_token": 8, "num_hidden_layers": 27, "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1,
    "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": False, "topk_group": 1, "use_grouped_topk": True,
    "v_head_dim": 128, "vocab_size": 163840,
}  # fmt: skip
K3_TINY = json.loads(Path(__file__).with_name("kimi_k3_tiny.json").read_text())


def test_mixtral():
    arch = read_arch(MIXTRAL_8X7B)
    assert arch.layers[0].attention == AttentionSpec(32, 8, 128, qk_norm=None) and len(arch.moe_layers) == 32
    assert (arch.moe.experts, arch.moe.width, arch.moe.router.renormalise, arch.moe.shared_width) == (8, 14336, True, 0)
    assert arch.key("expert.up", layer=2, expert=7) == "model.layers.2.block_sparse_moe.experts.7.w3.weight"


def test_deepseek_v3():
    arch = read_arch(DEEPSEEK_V3)
    attention, router = arch.layers[0].attention, arch.moe.router
    assert isinstance(attention, MlaSpec) and arch.moe_layers == tuple(range(3, 61))
    assert sum(math.prod(layer.attention.cache_shape) for layer in arch.layers) * 2 == 70_272  # bytes a token in bfloat16
    assert attention.scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert (router.groups, router.top_groups, router.top_k, router.scale, router.score) == (8, 4, 8, 2.5, "sigmoid")
    assert arch.rope is not None and arch.rope.interleaved and arch.rope.dim == 64
    assert arch.rope.yarn is not None and arch.rope.yarn.attention_factor == 1.0
    assert arch.quant == QuantSpec("fp8_block", (128, 128))
    assert [s.prefix for s in arch.skipped] == ["model.layers.61."] and "multi-token prediction" in arch.skipped[0].why


def test_gpt_oss():
    arch = read_arch(GPT_OSS_20B)
    attentions = [layer.attention for layer in arch.layers]
    assert [a.window for a in attentions if isinstance(a, AttentionSpec)] == [128, None] * 12
    assert arch.moe.activation.limit == 7.0 and arch.moe.activation.scale == 1.702 and arch.moe.bias and arch.moe.router.bias
    assert arch.rope is not None and arch.rope.yarn is not None and not arch.rope.yarn.truncate
    assert arch.rope.yarn.attention_factor == pytest.approx(0.1 * math.log(32) + 1)


def test_kimi_linear():
    arch = read_arch(KIMI_LINEAR_48B)
    delta = arch.layers[0].attention
    assert delta == KdaSpec(32, 128, 4) and arch.rope is None and arch.recurrent and not arch.attention_residuals
    assert [i + 1 for i, layer in enumerate(arch.layers) if layer.attention.kind == "mla"] == [4, 8, 12, 16, 20, 24, 27]
    assert arch.moe_layers == tuple(range(1, 27)) and arch.max_positions == 1_048_576


def test_kimi_k25_reads_its_text_config():
    text = {**DEEPSEEK_V3, "model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0}
    del text["quantization_config"]
    arch = read_arch({"model_type": "kimi_k25", "text_config": text, "vision_config": {}})
    assert arch.key("expert.down", layer=60, expert=3) == "language_model.model.layers.60.mlp.experts.3.down_proj.weight"
    assert arch.key("head") == "language_model.lm_head.weight"
    assert arch.vision is None and {s.prefix for s in arch.skipped} == {"vision_tower.", "mm_projector."}


def test_published_towers(published):
    """Of K2.5 its whole vision_config; what it leaves out is the family's."""
    more = {
        "init_pos_emb_time": 4, "merge_type": "sd2_tpool", "mm_hidden_size": 1152, "mm_projector_type": "patchmerger", "pos_emb_type":
        "divided_fixed", "projector_hidden_act": "gelu", "projector_ln_eps": 1e-05, "text_hidden_size": 7168, "video_attn_type":
        "spatial_temporal",
    }  # fmt: skip
    before = published("kimi_k25")
    for config in (before, {**before, "vision_config": {**before["vision_config"], **more}}):
        arch = read_arch(config)
        assert arch.vision == MoonVitSpec(27, 1152, 16, 1152, 4304, 14, 2, 7168, (64, 64), 4, "k2.5", "bicubic", 1e-5)
        assert arch.vision.bias and not arch.spatial_positions and arch.skipped == ()
    arch = read_arch(published("kimi_k3"))
    assert arch.vision == MoonVitSpec(27, 1024, 12, 1536, 4096, 14, 2, 7168, (64, 64), 4, "k3", "bilinear", 1e-5)
    assert not arch.vision.bias and arch.skipped == ()


def changed(config: dict, path: str, value: object) -> dict:
    head, _, rest = path.partition(".")
    return {**config, head: changed(config[head], rest, value) if rest else value}


@pytest.mark.parametrize(
    ("config", "path", "value", "says"),
    [
        (MIXTRAL_8X7B, "num_experts_per_tok", 9, "num_experts_per_tok 9 of 8 experts"),
        (MIXTRAL_8X7B, "hidden_act", "gelu", "hidden_act 'gelu'"),
        (MIXTRAL_8X7B, "rope_scaling", {"rope_type": "llama3"}, "rope_type 'llama3'"),
        (MIXTRAL_8X7B, "rope_parameters", {"rope_type": "default", "rope_theta": 5e5}, r"rope_theta 1000000\.0 beside rope_parameters"),
        (MIXTRAL_8X7B, "num_local_experts", None, "num_local_experts, found None"),
        (DEEPSEEK_V3, "rope_parameters", {"type": "yarn", "factor": 32, "rope_theta": 1e4}, "factor 32 beside rope_scaling factor 40"),
        (DEEPSEEK_V3, "scoring_func", "softmax", "scoring_func 'softmax'"),
        (DEEPSEEK_V3, "topk_method", "greedy", "topk_method 'greedy'"),
        (DEEPSEEK_V3, "topk_group", 9, "topk_group 9 of n_group 8"),
        (DEEPSEEK_V3, "n_group", 7, "n_group 7"),
        (DEEPSEEK_V3, "moe_layer_freq", 2, "moe_layer_freq 2"),
        (DEEPSEEK_V3, "kv_lora_rank", None, "kv_lora_rank, found None"),
        (GPT_OSS_20B, "layer_types", ["full_attention"] * 23, "layer_types"),
        (GPT_OSS_20B, "layer_types", ["chunked_attention"] * 24, "chunked_attention"),
        (KIMI_LINEAR_48B, "mla_use_nope", False, "mla_use_nope false"),
        (KIMI_LINEAR_48B, "linear_attn_config.kda_layers", [1, 2, 3, 4], "full_attn_layers and kda_layers"),
        (KIMI_LINEAR_48B, "moe_router_activation_func", "softmax", "moe_router_activation_func 'softmax'"),
        (KIMI_LINEAR_48B, "num_nextn_predict_layers", 1, "num_nextn_predict_layers"),
        (K3_TINY, "text_config.hidden_act", "relu2", "text_config.hidden_act 'relu2'"),
        (K3_TINY, "text_config.activation_situ_beta", None, "text_config.activation_situ_beta, found None"),
        (K3_TINY, "text_config.tie_word_embeddings", True, "text_config.tie_word_embeddings True with False at the top"),
        (K3_TINY, "hidden_size", 128, "hidden_size 128 at the top and 64 in text_config"),
        (K3_TINY, "text_config.topk_group", 2, "topk_group 2 of num_expert_group 1"),
        (K3_TINY, "vision_config.norm_type", "layernorm", "vision_config.norm_type 'layernorm'"),
        (K3_TINY, "vision_config.attn_bias", True, "vision_config.attn_bias True"),
        (K3_TINY, "vision_config.mm_projector_type", "patchmerger", "mm_projector_type 'patchmerger'"),
        (K3_TINY, "vision_config.merge_kernel_size", [2, 3], r"merge_kernel_size \[2, 3\]"),
        (K3_TINY, "vision_config.pos_emb_interpolation_mode", "nearest", "pos_emb_interpolation_mode 'nearest'"),
        (K3_TINY, "vision_config.vt_num_attention_heads", 4, "4 heads in an attention of 24 values"),
        (K3_TINY, "vision_config.text_hidden_size", 128, "text_hidden_size 128"),
        (K3_TINY, "vision_config.vt_num_attention_heads", None, "vt_num_attention_heads, found None"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(config, path, value, says):
    with pytest.raises(CheckpointError, match=says):
        read_arch(changed(config, path, value))


@pytest.mark.parametrize("name", ["mixtral", "kimi_k3"])
def test_more_experts_in_the_file_than_in_the_config(families, name, tmp_path):
    """Half as many: the others are named."""
    from probes.checkpoint import Checkpoint
    from runtime.placement import Placement
    from runtime.plan import plan_rank

    checkpoint = Checkpoint.open(families[name].path)
    path, key = ("num_local_experts", "num_local_experts") if name == "mixtral" else ("text_config.num_experts", "num_experts")
    assert key in (checkpoint.config.get("text_config") or checkpoint.config)
    arch = read_arch(changed(checkpoint.config, path, 4))
    with pytest.raises(CheckpointError, match=r"gate.* has shape \[8"):
        plan_rank(checkpoint, arch, Placement.contiguous(len(arch.moe_layers), 4, 1), 0)
