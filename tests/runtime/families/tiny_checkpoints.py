"""Tiny random checkpoints of every family, saved as their publishers save them, and a reference that answers for each.

A builder writes a checkpoint folder and returns tokens -> logits [T, V]. References are transformers' models; Kimi K3, which it does not
have, is composed in kimi_k3_reference.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from kimi_k3_reference import KimiK3, unpack_mxfp4
from safetensors.torch import load_file, save_file
from torch import Tensor

Reference = Callable[[list[int]], Tensor]

COMMON = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "num_experts_per_tok": 2,
    "initializer_range": 0.2,  # wide: logits must depend visibly on every part
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 24}
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64,
    "mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip
GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 32, "n_shared_experts": 2}


def _lively(model: Any) -> None:
    """Norms away from 1, biases and sinks away from 0, decays of every kind."""
    generator = torch.Generator().manual_seed(7)

    def noise(tensor: Tensor, scale: float) -> Tensor:
        return torch.randn(tensor.shape, generator=generator) * scale

    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if any(word in name for word in ("norm", "bias", "sinks")):
                tensor.add_(noise(tensor, 0.3))
            if name.endswith(("A_log", "dt_bias")):
                tensor.copy_(noise(tensor, 1.5))


def _built(kind: str, config: Any, path: Path, shards: str = "100KB") -> Any:
    torch.manual_seed(1)
    model = getattr(transformers, kind)(config).float().eval()
    _lively(model)
    model.save_pretrained(path, max_shard_size=shards)
    return model


def _answers(model: Any) -> Reference:
    def logits(tokens: list[int]) -> Tensor:
        with torch.no_grad():
            return model(input_ids=torch.tensor([tokens])).logits[0]

    return logits


def _saved_by_transformers(kind: str, config: Callable[[], Any]) -> Callable[[Path], Reference]:
    return lambda path: _answers(_built(kind, config(), path))


def _mixtral() -> Any:
    return transformers.MixtralConfig(**COMMON, num_local_experts=8, sliding_window=12)


def _deepseek(**changes: Any) -> Any:
    return transformers.DeepseekV3Config(**{**COMMON, **LATENT, **GROUPS, "first_k_dense_replace": 1, "rope_parameters": YARN, **changes})


def _gpt_oss() -> Any:
    rope = {"rope_type": "yarn", "rope_theta": 1.5e5, "factor": 16.0, "original_max_position_embeddings": 32, "truncate": False}
    sizes = {**COMMON, "intermediate_size": 32, "head_dim": 16, "num_local_experts": 8, "sliding_window": 9}
    return transformers.GptOssConfig(**sizes, rope_parameters=rope, swiglu_limit=1.5)


def _kimi_linear() -> Any:
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    sizes = {**COMMON, **LATENT, "num_experts": 8, "moe_intermediate_size": 32, "num_shared_experts": 1}
    return transformers.KimiLinearConfig(**sizes, layer_types=kinds, linear_head_dim=16, linear_num_heads=4)


def _glm4_moe() -> Any:
    sizes = {**COMMON, **GROUPS, "head_dim": 16, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
    return transformers.Glm4MoeConfig(**sizes, use_qk_norm=True, attention_bias=True, partial_rotary_factor=0.5)


def _minimax_m2() -> Any:
    return transformers.MiniMaxM2Config(**COMMON, num_local_experts=8, head_dim=16, rotary_dim=8)


def _tensors(path: Path) -> dict[str, Tensor]:
    return {name: tensor for file in sorted(path.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def _save(path: Path, config: dict[str, Any], tensors: dict[str, Tensor], shards: int = 3) -> None:
    """Sharded, with an index; neighbours in the order of names go to different files, so that weights and scales part."""
    path.mkdir(parents=True, exist_ok=True)
    for file in path.glob("model*"):
        file.unlink()
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = names[shard::shards]
        save_file({name: tensors[name].contiguous() for name in mine}, path / file)
        weight_map |= dict.fromkeys(mine, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (path / "config.json").write_text(json.dumps(config))


def _set(model: Any, name: str, value: Tensor) -> None:
    """Gives the model the value of one of its saved tensors; experts are fused in memory."""
    parts = name.split(".")
    layer = model.model.layers[int(parts[2])]
    if "experts" in parts and "shared_experts" not in parts:
        experts, expert, projection = layer.mlp.experts, int(parts[5]), parts[6]
        width = value.shape[0]
        if projection == "down_proj":
            experts.down_proj.data[expert] = value
        else:
            experts.gate_up_proj.data[expert][slice(0, width) if projection == "gate_proj" else slice(width, 2 * width)] = value
        return
    model.get_parameter(name).data.copy_(value)


def deepseek_v3_fp8(path: Path) -> Reference:
    """Blocks of 16 x 16, so that tiny matrices have many of them; and a multi-token-prediction layer, which is not used."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    model = _built("DeepseekV3ForCausalLM", _deepseek(moe_intermediate_size=48, intermediate_size=80), path)
    decoder, tensors = Fp8Dequantize(None), _tensors(path)
    for name, weight in list(tensors.items()):
        if weight.dim() != 2 or name in ("model.embed_tokens.weight", "lm_head.weight") or name.endswith("gate.weight"):
            continue
        rows, columns = weight.shape
        blocks = weight.view(rows // 16, 16, columns // 16, 16)
        scale = blocks.abs().amax((1, 3)) / 448
        tensors[name] = (blocks / scale[:, None, :, None]).reshape(rows, columns).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scale
        _set(model, name, decoder._dequantize_one(tensors[name], scale, torch.float32))
    tensors["model.layers.3.eh_proj.weight"] = torch.randn(64, 128)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 16], "activation_scheme": "dynamic"}
    _save(path, config, tensors)
    return _answers(model)


def gpt_oss_mxfp4(path: Path) -> Reference:
    """Experts as blocks and scales, decoded for the reference by transformers."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    model = _built("GptOssForCausalLM", _gpt_oss(), path)
    generator = torch.Generator().manual_seed(5)
    tensors = _tensors(path)
    for i, layer in enumerate(model.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            parameter = getattr(layer.mlp.experts, name)
            experts, columns, rows = parameter.shape
            blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
            scales = torch.randint(120, 125, (experts, rows, columns // 32), dtype=torch.uint8, generator=generator)
            parameter.data.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            at = f"model.layers.{i}.mlp.experts.{name}"
            del tensors[at]
            tensors |= {f"{at}_blocks": blocks, f"{at}_scales": scales}
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    _save(path, config, tensors)
    return _answers(model)


def pack_int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """[rows, columns] -> int32 [rows, columns / 8] lowest bits first, bfloat16 scales, and the values they stand for."""
    grouped = weight.unflatten(1, (-1, group))
    scale = (grouped.abs().amax(-1) / 7).bfloat16()
    values = (grouped / scale.float().unsqueeze(-1)).round().clamp(-8, 7)
    nibbles = (values.flatten(1) + 8).to(torch.int64).unflatten(1, (-1, 8))
    packed = sum(nibbles[..., i] << (4 * i) for i in range(8))
    packed = torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)
    return packed, scale, (values * scale.float().unsqueeze(-1)).flatten(1)


def kimi_k25(path: Path) -> Reference:
    """The hub's layout: language_model.model.layers, int4 experts, a vision tower."""
    model = _built("DeepseekV3ForCausalLM", _deepseek(n_group=1, topk_group=1, num_experts_per_tok=3), path)
    tensors: dict[str, Tensor] = {}
    for name, weight in _tensors(path).items():
        if ".experts." not in name:
            tensors[f"language_model.{name}"] = weight
            continue
        packed, scale, values = pack_int4(weight, 32)
        stem = f"language_model.{name}"
        tensors |= {f"{stem}_packed": packed, f"{stem}_scale": scale, f"{stem}_shape": torch.tensor(weight.shape, dtype=torch.int32)}
        _set(model, name, values)
    tensors["vision_tower.patch_embed.proj.weight"] = torch.randn(8, 3, 14, 14)
    text = json.loads((path / "config.json").read_text()) | {"model_type": "kimi_k2"}
    scheme = {"num_bits": 4, "group_size": 32, "symmetric": True, "strategy": "group", "type": "int", "actorder": None}
    text["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": scheme}},
    }  # fmt: skip
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text, "vision_config": {}}
    _save(path, config, tensors)
    return _answers(model)


def kimi_k3(path: Path) -> Reference:
    """Published names and dtypes: A_log longer than the heads, float32 convolutions, MXFP4 experts, a vision tower."""
    config = json.loads(Path(__file__).with_name("kimi_k3_tiny.json").read_text())
    model = KimiK3(config)
    tensors = model.tensors(torch.Generator().manual_seed(3))
    _save(path, config, tensors, shards=4)
    model.load({name: tensor for name, tensor in tensors.items() if name.startswith("language_model.")})
    return model.logits


BUILDERS: dict[str, Callable[[Path], Reference]] = {
    "mixtral": _saved_by_transformers("MixtralForCausalLM", _mixtral),
    "deepseek_v3": _saved_by_transformers("DeepseekV3ForCausalLM", _deepseek),
    "deepseek_v3_fp8": deepseek_v3_fp8,
    "gpt_oss": _saved_by_transformers("GptOssForCausalLM", _gpt_oss),
    "gpt_oss_mxfp4": gpt_oss_mxfp4,
    "kimi_linear": _saved_by_transformers("KimiLinearForCausalLM", _kimi_linear),
    "kimi_k25": kimi_k25,
    "kimi_k3": kimi_k3,
    "glm4_moe": _saved_by_transformers("Glm4MoeForCausalLM", _glm4_moe),
    "minimax_m2": _saved_by_transformers("MiniMaxM2ForCausalLM", _minimax_m2),
}
__all__ = ["BUILDERS", "Reference", "pack_int4", "unpack_mxfp4"]
