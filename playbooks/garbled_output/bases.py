"""Models to break: the shipped one and SmolLM2, which were trained, and small ones of random weights with the parts that those lack.

Some are written here by our own list of tensors, some are saved by transformers, so that the drills do not hold our reading of a layout
against itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from playbooks.drills import upcycled
from playbooks.drills.checkpoint import TOKENIZER
from probes.checkpoint import INDEX
from runtime.inventory.families import inventory_of
from runtime.shipped import shapes_moe

DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "dtype": "float32", "vocab_size": 1024, "hidden_size": 128,
    "intermediate_size": 256, "moe_intermediate_size": 128, "num_hidden_layers": 3, "first_k_dense_replace": 1, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "qk_head_dim": 32,
    "v_head_dim": 32, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 2,
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu",
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_interleave": True, "attention_bias": False,
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "float32", "vocab_size": 1024, "hidden_size": 128,
    "intermediate_size": 128, "moe_intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1, "attention_bias": True,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
SAVED: dict[str, Any] = {
    "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 998, "pad_token_id": None,
}  # fmt: skip
MIXTRAL: dict[str, Any] = {**SAVED, "sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
YARN = {"rope_type": "yarn", "rope_theta": 1.5e5, "factor": 4.0, "original_max_position_embeddings": 256, "truncate": False}
GPT_OSS: dict[str, Any] = {**SAVED, "head_dim": 32, "sliding_window": 16, "rope_parameters": YARN}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3", "activation_scheme": "dynamic"}


def shipped(folder: Path, seed: int) -> None:
    """A copy; every seed is the same model."""
    shutil.copytree(shapes_moe(), folder)


def deepseek(folder: Path, seed: int) -> None:
    write(folder, DEEPSEEK, seed)


def deepseek_faint(folder: Path, seed: int) -> None:
    """Small embeddings, as trained models have them: root mean square 0.002."""
    deepseek(folder, seed)
    edit_tensors(folder, lambda name, tensor: 0.002 * tensor if "embed_tokens" in name else None)


def deepseek_fp8(folder: Path, seed: int) -> None:
    write(folder, {**DEEPSEEK, "quantization_config": FP8}, seed)


def qwen(folder: Path, seed: int) -> None:
    write(folder, QWEN, seed)


def mixtral(folder: Path, seed: int) -> None:
    save("Mixtral", MIXTRAL, folder, seed)


def gpt_oss(folder: Path, seed: int) -> None:
    save("GptOss", GPT_OSS, folder, seed)


def smollm2(folder: Path, seed: int) -> None:
    """Four equal experts a layer; the seed is the router's."""
    upcycled.write(folder, seed=seed)


UNAVAILABLE: dict[Callable[[Path, int], None], Callable[[], str]] = {
    **dict.fromkeys((mixtral, gpt_oss), lambda: "" if find_spec("transformers") is not None else "not installed: transformers"),
    smollm2: upcycled.unavailable,
}


def save(kind: str, config: dict[str, Any], folder: Path, seed: int) -> None:
    """A model of transformers with the weights that `write` would give it, as transformers saves it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**config)).float()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if kind == "GptOss" and tensor.dim() == 3:  # [E, inputs, outputs]
                tensor.copy_(_tensor(name, tensor.mT.shape, draw, False)[name].mT)
            elif name.endswith("bias") and tensor.dim() == 2:  # [E, outputs]
                tensor.copy_(0.1 * torch.randn(tensor.shape, generator=draw))
            else:
                tensor.copy_(_tensor(name, tuple(tensor.shape), draw, False)[name])
    model.save_pretrained(folder)
    _give_tokenizer(folder)
    write_index(folder)


def write(folder: Path, config: dict[str, Any], seed: int) -> None:
    """One shard of normal weights, 1 / sqrt(inputs) wide, so that every part of a layer counts; norms near one."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 998}))
    _give_tokenizer(folder)
    draw = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for group in inventory_of(config).groups:
        for name in group.names():
            if not name.endswith("_scale_inv"):
                tensors.update(_tensor(name, group.shape, draw, group.dtype == "F8_E4M3"))
    save_file(tensors, folder / "model-00001-of-00001.safetensors", {"format": "pt"})
    write_index(folder)


def _give_tokenizer(folder: Path) -> None:
    for name in TOKENIZER:
        if (shapes_moe() / name).exists():
            shutil.copy(shapes_moe() / name, folder / name)


def _tensor(name: str, shape: tuple[int, ...], draw: torch.Generator, quantised: bool) -> dict[str, Tensor]:
    values = torch.randn(shape, generator=draw)
    if "norm" in name:
        return {name: 1 + 0.1 * values}
    if len(shape) < 2:
        return {name: (0.1 if "correction" in name else 0.3) * values}  # so that the router chooses every expert now and then
    values = values if "embed" in name else values * shape[-1] ** -0.5
    if not quantised:
        return {name: values}
    padded = torch.nn.functional.pad(values, (0, -shape[1] % 128, 0, -shape[0] % 128))
    blocks = padded.view(padded.shape[0] // 128, 128, padded.shape[1] // 128, 128)
    scale = blocks.abs().amax((1, 3)) / 448  # the largest float8_e4m3
    packed = (blocks / scale[:, None, :, None]).view(padded.shape)[: shape[0], : shape[1]].to(torch.float8_e4m3fn)
    return {name: packed.contiguous(), f"{name}_scale_inv": scale}


def write_index(folder: Path) -> None:
    """The index of the shards that are there."""
    weight_map = {name: path.name for path in sorted(folder.glob("*.safetensors")) for name in load_file(path)}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def edit_config(folder: Path, name: str = "config.json", **changes: Any) -> None:
    """Settings at the top, and in text_config or rope_parameters where those have them; None takes one away."""
    path = folder / name
    config = json.loads(path.read_text())
    rope, inner = config.get("rope_parameters", {}), config.get("text_config", {})
    for key, value in changes.items():
        for part in (rope,) if key in rope else (config, inner) if key in inner else (config,):
            part[key] = value
            if value is None:
                del part[key]
    path.write_text(json.dumps(config))


def edit_tensors(folder: Path, change: Callable[[str, Tensor], Tensor | None]) -> int:
    """Every tensor that `change` answers with another one is written back -> how many were. A wrong drill would change none: ValueError."""
    changed = 0
    for path in sorted(folder.glob("*.safetensors")):
        tensors, before = load_file(path), changed
        for name, tensor in tensors.items():
            other = change(name, tensor)
            if other is not None:
                tensors[name], changed = other.contiguous(), changed + 1
        if changed > before:
            save_file(tensors, path, {"format": "pt"})
    if not changed:
        raise ValueError("the drill changed no tensor")
    return changed
