"""What config.json says becomes an ArchSpec; what cannot be computed is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.arch import read_arch
from traces.errors import CheckpointError

# Qwen/Qwen3-30B-A3B and Qwen/Qwen3-VL-30B-A3B-Instruct, the fields that matter, as published.
QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_VL_30B = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"], "image_token_id": 151655, "model_type": "qwen3_vl_moe",
    "text_config": {
        "attention_bias": False, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 262144, "mlp_only_layers": [],
        "model_type": "qwen3_vl_moe_text", "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}, "rope_theta": 5000000,
        "vocab_size": 151936,
    },
    "tie_word_embeddings": False, "video_token_id": 151656,
    "vision_config": {
        "deepstack_visual_indexes": [8, 16, 24], "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152, "in_channels": 3,
        "intermediate_size": 4304, "model_type": "qwen3_vl_moe", "num_heads": 16, "num_position_embeddings": 2304,
        "out_hidden_size": 2048, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
    "vision_end_token_id": 151653, "vision_start_token_id": 151652,
}  # fmt: skip


def test_published_text_config():
    arch = read_arch(QWEN3_30B)
    assert len(arch.layers) == len(arch.moe_layers) == 48
    assert (arch.moe.experts, arch.moe.width, arch.moe.router.top_k, arch.moe.router.renormalise) == (128, 768, 8, True)
    assert (arch.rope.theta, arch.rope.sections, arch.tokens.eos, arch.vision) == (1e6, None, (151645,), None)
    assert arch.layers[0].attention.qkv_rows == (32 + 2 * 4) * 128
    assert arch.key("expert.down", layer=3, expert=17) == "model.layers.3.mlp.experts.17.down_proj.weight"


def test_published_multimodal_config():
    arch = read_arch(QWEN3_VL_30B)
    assert arch.rope.sections == (24, 20, 20) and arch.rope.theta == 5e6
    assert arch.vision is not None and arch.vision.deepstack == (8, 16, 24) and arch.vision.patch_values == 1536
    assert arch.vision.grid_side == 48 and arch.tokens.image == 151655
    assert arch.key("experts.down", layer=1) == "model.language_model.layers.1.mlp.experts.down_proj"


def test_router_renormalises_as_the_family_does():
    """qwen3_moe reads norm_topk_prob (default false); qwen3_vl_moe does not read it."""
    assert not read_arch({**QWEN3_30B, "norm_topk_prob": False}).moe.router.renormalise
    assert not read_arch({k: v for k, v in QWEN3_30B.items() if k != "norm_topk_prob"}).moe.router.renormalise
    text = {**QWEN3_VL_30B["text_config"], "norm_topk_prob": False}
    assert read_arch({**QWEN3_VL_30B, "text_config": text}).moe.router.renormalise


def test_dense_layers():
    arch = read_arch({**QWEN3_30B, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert arch.moe_layers == (1, 5)
    assert arch.layers[0].dense_width == 6144


def test_configs_of_transformers_and_the_shipped_model(tiny_qwen3_moe, tiny_qwen3_vl_moe):
    for tiny in (tiny_qwen3_moe, tiny_qwen3_vl_moe):
        arch = read_arch(json.loads((tiny.path / "config.json").read_text()))
        assert arch.moe.experts == 8
    shipped = Path(__file__).parents[2] / "runtime/shipped/shapes-moe/config.json"
    if shipped.exists():
        assert read_arch(json.loads(shipped.read_text())).family == "qwen3_vl_moe"


@pytest.mark.parametrize(
    ("change", "says", "hint"),
    [
        ({"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"]}, "DeepseekV4ForCausalLM", "qwen3_vl_moe"),
        ({"model_type": "llama", "architectures": None}, "model_type llama", "qwen3_moe"),
        ({"model_type": None}, "model_type None", "qwen3_moe"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8", "bfloat16"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'", "silu"),
        ({"use_sliding_window": True}, "use_sliding_window", "full attention"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn'", "default"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rope_type 'llama3'", "default"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor", "whole head"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok 129", "number of experts"),
        ({"hidden_size": "wide"}, "hidden_size", "belongs"),
        ({"num_experts": None}, "num_experts", "belongs"),
        ({"mlp_only_layers": list(range(48))}, "no expert layer", "Mixture"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(change, says, hint):
    with pytest.raises(CheckpointError) as caught:
        read_arch({**QWEN3_30B, **change}).moe  # noqa: B018
    assert says in caught.value.message and hint in caught.value.hint


@pytest.mark.parametrize(
    ("section", "change", "says"),
    [
        ("vision_config", {"hidden_act": "quick_gelu"}, "quick_gelu"),
        ("vision_config", {"num_position_embeddings": 2305}, "2305"),
        ("vision_config", {"out_hidden_size": 1024}, "out_hidden_size 1024"),
        ("text_config", {"rope_scaling": {"mrope_interleaved": False, "mrope_section": [24, 20, 20]}}, "mrope_interleaved"),
        ("text_config", {"quantization_config": {"quant_method": "awq"}}, "awq"),
    ],
)
def test_multimodal_features_are_refused_by_name(section, change, says):
    with pytest.raises(CheckpointError, match=says):
        read_arch({**QWEN3_VL_30B, section: {**QWEN3_VL_30B[section], **change}})
