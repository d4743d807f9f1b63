"""Identity of an expert's weights as served: what says that a slot holds the expert it is meant to hold, on whichever rank."""

from __future__ import annotations

import hashlib
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


def hex_hash(value: int) -> str:
    return value.to_bytes(8, "little", signed=True).hex()
