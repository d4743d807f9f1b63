"""Identity of weights as served: what says that a slot holds the expert it is meant to hold, and a rank its part of everything else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from runtime.weights import ExpertBank

THREADS = 4  # hashlib lets other threads run


def expert_hash(parts: list[Tensor]) -> int:
    """64-bit BLAKE2b of one expert's bytes as they lie in memory, in the compute dtype; a signed integer (fits an int64 tensor)."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        tensor = part if part.is_contiguous() else part.t()
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "little", signed=True)


def layer_hashes(layers: list[ExpertBank]) -> Tensor:
    """Of every local slot of every MoE layer: [layers, slots] int64."""
    slots = [[part[s] for part in w.parts()] for w in layers for s in range(w.slots)]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="hash") as pool:
        hashes = list(pool.map(expert_hash, slots))
    return torch.tensor(hashes, dtype=torch.int64).view(len(layers), -1)


def weight_facts(targets: Mapping[str, Tensor]) -> dict[str, dict[str, str]]:
    """Hash and dtype of every target that is no expert, by name."""
    kept = {name: tensor for name, tensor in targets.items() if ".experts." not in name}
    with ThreadPoolExecutor(THREADS, thread_name_prefix="hash") as pool:
        hashes = list(pool.map(lambda tensor: expert_hash([tensor]), kept.values()))
    return {
        name: {"hash": hex_hash(value), "dtype": str(tensor.dtype).removeprefix("torch.")}
        for (name, tensor), value in zip(kept.items(), hashes, strict=True)
    }


def hex_hash(value: int) -> str:
    return value.to_bytes(8, "little", signed=True).hex()
