"""A checkpoint of random weights for drills and benchmarks: a real model of a supported family, in as many bytes as are asked for."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from probes.checkpoint import INDEX
from runtime.inventory.families import inventory_of
from runtime.inventory.tensors import TensorGroup
from runtime.shipped import shapes_moe

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
SHARD = 64 << 20


def config_of(expert_bytes: int, hidden: int = 512, layers: int = 4, experts: int = 32) -> dict[str, Any]:
    """A qwen3_moe whose experts take about `expert_bytes` in bfloat16. The vocabulary is that of the shipped tokenizer."""
    inner = max(32, round(expert_bytes / (2 * 3 * hidden * layers * experts) / 32) * 32)
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "dtype": "bfloat16",
        "vocab_size": 1024,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "moe_intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "attention_bias": False,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }


def write_checkpoint(folder: Path, config: dict[str, Any], seed: int = 0, shard: int = SHARD) -> Path:
    """Writes config, tokenizer and shards of at most `shard` bytes (a tensor more). Values are small and finite; norms are one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in TOKENIZER:
        if (shapes_moe() / name).exists():
            shutil.copy(shapes_moe() / name, folder / name)
    draw = np.random.default_rng(seed)
    weight_map: dict[str, str] = {}
    for number, part in enumerate(_parts(config, shard)):
        file = f"model-{number + 1:05}.safetensors"
        _write_shard(folder / file, part, draw)
        weight_map.update({name: file for name, _ in part})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def _parts(config: dict[str, Any], shard: int) -> list[list[tuple[str, TensorGroup]]]:
    parts: list[list[tuple[str, TensorGroup]]] = [[]]
    size = 0
    for group in inventory_of(config).groups:
        each = group.nbytes // group.copies
        for name in group.names():
            if size >= shard:
                parts.append([])
                size = 0
            parts[-1].append((name, group))
            size += each
    return parts


def _write_shard(path: Path, part: list[tuple[str, TensorGroup]], draw: np.random.Generator) -> None:
    header: dict[str, Any] = {}
    at = 0
    for name, group in part:
        size = group.nbytes // group.copies
        header[name] = {"dtype": group.dtype, "shape": list(group.shape), "data_offsets": [at, at + size]}
        at += size
    body = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(body).to_bytes(8, "little") + body)
        for name, group in part:
            count = math.prod(group.shape)
            if "norm" in name:
                stream.write(np.full(count, 0x3F80, np.uint16).tobytes())  # 1.0 in bfloat16
            else:
                stream.write(_small(count, draw))


def _small(count: int, draw: np.random.Generator) -> bytes:
    """bfloat16 values of either sign between 2**-9 and 2**-6."""
    sign = draw.integers(0, 2, count, dtype=np.uint16) << 15
    exponent = draw.integers(118, 121, count, dtype=np.uint16) << 7
    return (sign | exponent | draw.integers(0, 128, count, dtype=np.uint16)).tobytes()
