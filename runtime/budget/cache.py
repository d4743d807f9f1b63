"""What sequences cost on a rank: keys and values that grow with the context, recurrent state that does not."""

from __future__ import annotations

import math
from collections import Counter

from runtime.budget.layout import Layout, Stage
from runtime.inventory.model import Inventory, LayerCache

STATE_BYTES = 4  # recurrent states are kept in float32
ACTIVATION_BYTES = 2  # convolution tails, in the activation dtype


def kv_values(cache: LayerCache, context: int) -> int:
    """Values one layer keeps of a sequence of `context` tokens, over all ranks."""
    return cache.values * (context if cache.window is None else min(context, cache.window))


def kv_bytes(inventory: Inventory, layout: Layout, stage: Stage, context: int, item: float) -> int:
    """Bytes of keys and values of one sequence on a rank of `stage`. A latent is kept whole by every rank of a tensor-parallel group."""
    mine = Counter(inventory.caches[stage.first : stage.stop])
    return math.ceil(sum(count * kv_values(cache, context) / min(layout.tp, cache.heads) for cache, count in mine.items()) * item)


def kv_bytes_per_token(inventory: Inventory, item: float) -> int:
    """Of one token in all layers, over all ranks together; sliding windows count while the token is inside."""
    return math.ceil(sum(cache.values for cache in inventory.caches) * item)


def state_bytes(inventory: Inventory, layout: Layout, stage: Stage, tail_item: int = ACTIVATION_BYTES) -> int:
    """Bytes of recurrent state and convolution tails (`tail_item` bytes a value) of one sequence on a rank of `stage`, however long."""
    mine = inventory.caches[stage.first : stage.stop]
    return sum((cache.state * STATE_BYTES + cache.conv * tail_item) // min(layout.tp, cache.heads) for cache in mine)


def longest_context(room: int, per_rank: int, inventory: Inventory, layout: Layout, stage: Stage, item: float) -> int | None:
    """The longest context of which `per_rank` sequences fit into `room` bytes; None when it is not limited by memory (no layer grows)."""
    if per_rank * kv_bytes(inventory, layout, stage, 1, item) > room:
        return 0
    low, high = 1, 2
    while per_rank * kv_bytes(inventory, layout, stage, high, item) <= room:
        low, high = high, high * 2
        if high > 1 << 40:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if per_rank * kv_bytes(inventory, layout, stage, middle, item) <= room:
            low = middle
        else:
            high = middle
    return low
