"""The paged KV cache: a pool of fixed-size blocks, lent by an allocator (`runtime.blocks`).

Layout per layer: [2 * kv_heads, blocks, block_size, head_dim], the key heads before the value heads. Heads come first, so that
gathering the blocks of many sequences gives one contiguous [2 * kv_heads, sequences, context, head_dim] that attention reads without
a further copy; keys and values together, so that a step writes and gathers them once. Latent attention has one row instead of
2 * kv_heads, as wide as what it caches. A recurrent layer caches nothing, and has a state for every running sequence instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from runtime.arch import AnyAttention, KdaSpec
from runtime.blocks import BlockAllocator
from runtime.kv_pool import KvPool
from runtime.recurrent import RecurrentState


@dataclass(slots=True)
class KVCache:
    """What every layer remembers of the running sequences, and the allocator of the blocks."""

    pools: list[KvPool]  # per layer; no rows for a recurrent layer
    block_size: int
    allocator: BlockAllocator
    states: dict[int, RecurrentState] = field(default_factory=dict)  # of the recurrent layers, by layer

    @classmethod
    def create(
        cls, layers: Sequence[AnyAttention], blocks: int, block_size: int, sequences: int, dtype: torch.dtype, device: torch.device,
        float8: bool = False,
    ) -> KVCache:  # fmt: skip
        """`sequences`: slots for recurrent states. `float8`: what is cached is stored in eight bits with scales."""
        pools = [KvPool.create(layer.cache_shape, blocks, block_size, dtype, device, float8) for layer in layers]
        states = {i: RecurrentState.create(layer, sequences, device) for i, layer in enumerate(layers) if isinstance(layer, KdaSpec)}
        return cls(pools, block_size, BlockAllocator(blocks), states)

    @property
    def dtype(self) -> torch.dtype:
        return self.pools[0].dtype

    @property
    def blocks(self) -> int:
        return self.allocator.blocks

    @property
    def nbytes(self) -> int:
        return sum(pool.nbytes for pool in self.pools) + sum(state.nbytes for state in self.states.values())

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in the layer that caches most of it."""
        return max(pool.token_bytes for pool in self.pools)

    def blocks_for(self, tokens: int) -> int:
        """Blocks a sequence of `tokens` tokens needs."""
        return -(-tokens // self.block_size)
