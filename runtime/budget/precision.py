"""Bytes of a tensor group as stored, or as it would be in another precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from runtime.inventory.tensors import Kind, TensorGroup
from traces.errors import UsageError

Sizes = Callable[[TensorGroup], int]
"""Bytes of all copies of a group."""

QUANTISED: frozenset[Kind] = frozenset({"routed"})  # what published 4- and 8-bit checkpoints of this size pack first


@dataclass(frozen=True, slots=True)
class Precision:
    """`bits` a value, and `scale_bits` of scales spread over the values that share one."""

    name: str
    bits: int
    scale_bits: float
    source: str

    def nbytes(self, values: int) -> int:
        return math.ceil(values * (self.bits + self.scale_bits) / 8)


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp32", 32, 0.0, "IEEE 754"),
        Precision("bf16", 16, 0.0, "bfloat16"),
        Precision("fp8", 8, 32 / (128 * 128), "a float32 scale a block of 128 x 128 (DeepSeek-V3)"),
        Precision("int8", 8, 16 / 128, "a 16-bit scale every 128 values"),
        Precision("int4", 4, 16 / 32, "a 16-bit scale every 32 values (Kimi K2.5, compressed-tensors)"),
        Precision("mxfp4", 4, 8 / 32, "an 8-bit scale every 32 values (OCP MX)"),
    )
}
KV_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp32": 4.0}


def stored(group: TensorGroup) -> int:
    """As the files keep it."""
    return group.nbytes


def sizes_for(name: str) -> Sizes:
    """`stored`, or a precision: routed experts in it, everything else as stored. UsageError for an unknown word."""
    if name == "stored":
        return stored
    precision = PRECISIONS.get(name)
    if precision is None:
        raise UsageError(f"unknown precision {name}", f"one of stored, {', '.join(PRECISIONS)}")

    def size(group: TensorGroup) -> int:
        if not _in(group):
            return group.nbytes
        return 0 if group.role == "scale" else precision.nbytes(group.parameters)

    return size


def _in(group: TensorGroup) -> bool:
    return group.role in ("matrix", "scale") and group.kind in QUANTISED


def computed(item: int) -> Sizes:
    """As an engine keeps it that converts everything to one dtype of `item` bytes, like ours."""

    def size(group: TensorGroup) -> int:
        return group.parameters * item

    return size
