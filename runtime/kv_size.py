"""How many KV blocks a rank takes."""

from __future__ import annotations

import os

import torch

from runtime.arch import ArchSpec, KdaSpec
from runtime.kv_pool import cached_bytes
from runtime.layout import Share
from runtime.recurrent import state_bytes
from runtime.serve_config import ServeConfig
from traces.errors import UsageError

HOST_SHARE = 0.25  # of the memory that is available, over all ranks of the host: the rest is the page cache's and the system's
TYPICAL_SHARE = 4  # a running sequence is seldom longer than a quarter of the longest; when many are, the youngest are preempted
DEVICE_SHARE = 0.8  # of what is free on the device after loading: the rest is for activations


def block_bytes(arch: ArchSpec, share: Share, block_size: int, dtype: torch.dtype, float8: bool = False) -> int:
    """What the layers and heads that a rank holds cache for one block."""
    return block_size * sum(cached_bytes(spec.cache_shape, dtype.itemsize, float8) for spec in share.attentions(arch))


def kv_blocks(config: ServeConfig, arch: ArchSpec, share: Share, device: torch.device, dtype: torch.dtype, local_ranks: int) -> int:
    """What was asked for; else as many as the running sequences can fill, within a share of the memory there is.

    UsageError when not even one sequence of a single block and its answer fits.
    """
    if config.kv_blocks is not None:
        return config.kv_blocks
    longest = min(config.max_model_len or arch.max_positions, arch.max_positions)
    useful = max(longest, config.max_sequences * longest // TYPICAL_SHARE) // config.block_size + 1
    states = config.max_sequences * sum(state_bytes(spec) for spec in share.attentions(arch) if isinstance(spec, KdaSpec))
    per_block = block_bytes(arch, share, config.block_size, dtype, config.kv_dtype == "fp8")
    affordable = (_budget(device, local_ranks) - states) // max(per_block, 1)  # a stage of recurrent layers alone caches nothing
    blocks = min(useful, affordable)
    if blocks < 2:
        hint = "free some memory, or set --kv-blocks, --max-model-len or --max-sequences lower"
        raise UsageError("there is no memory for a KV cache", hint)
    return blocks


def _budget(device: torch.device, local_ranks: int) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * DEVICE_SHARE)
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(available * HOST_SHARE) // local_ranks
