"""How a matrix lies in the files: plain, or packed by one of the published quantisation schemes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runtime.inventory.stated import Stated
from traces.errors import CheckpointError

Scheme = Literal["plain", "fp8-block", "int4-packed", "mxfp4-packed", "mxfp4-blocks"]
PLAIN_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
MX_GROUP = 32  # values that share a scale in every MX format (OCP Microscaling Formats 1.0, section 5.2)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One tensor of a stored matrix: what its name ends with, its shape and dtype, and how many parameters it holds."""

    suffix: str
    shape: tuple[int, ...]
    dtype: str
    values: int


@dataclass(frozen=True, slots=True)
class Storage:
    """The scheme of a checkpoint, and the modules it leaves alone."""

    dtype: str  # of everything that is not packed
    scheme: Scheme = "plain"
    block: tuple[int, int] = (128, 128)  # fp8-block
    group: int = MX_GROUP  # values per scale of the packed schemes
    ignored: tuple[str, ...] | None = None  # patterns of module names; None: everything but the routed experts

    def covers(self, module: str, routed: bool) -> bool:
        """Whether this linear module is packed."""
        if self.scheme == "plain":
            return False
        if self.scheme == "fp8-block" and self.ignored is None:
            return True
        if self.ignored is None:
            return routed
        return not any(_matches(pattern, module) for pattern in self.ignored)

    def parts(self, module: str, rows: int, columns: int, routed: bool = False) -> list[StoredPart]:
        """The tensors of the weight [rows, columns] of a linear module."""
        count = rows * columns
        if not self.covers(module, routed):
            return [StoredPart(".weight", (rows, columns), self.dtype, count)]
        if self.scheme == "fp8-block":
            scale = (-(-rows // self.block[0]), -(-columns // self.block[1]))
            return [StoredPart(".weight", (rows, columns), "F8_E4M3", count), StoredPart(".weight_scale_inv", scale, "F32", 0)]
        if self.scheme == "int4-packed":
            return [
                StoredPart(".weight_packed", (rows, -(-columns // 8)), "I32", count),
                StoredPart(".weight_scale", (rows, columns // self.group), self.dtype, 0),
                StoredPart(".weight_shape", (2,), "I32", 0),
            ]
        return [
            StoredPart(".weight_packed", (rows, columns // 2), "U8", count),
            StoredPart(".weight_scale", (rows, columns // self.group), "U8", 0),
        ]


def _matches(pattern: str, module: str) -> bool:
    """compressed-tensors: a name, or a regular expression after "re:" that must match from the beginning."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return module == pattern or module.endswith("." + pattern)


def read_storage(whole: Stated, text: Stated) -> Storage:
    """From `dtype` and `quantization_config`, wherever they stand. CheckpointError for a scheme whose layout is not known here."""
    dtype = _dtype(whole, text)
    holder = text if text.has("quantization_config") else whole
    if not holder.has("quantization_config"):
        return Storage(dtype)
    quant = holder.section("quantization_config")
    method = quant.raw.get("quant_method")
    if method == "fp8":
        return Storage(dtype, "fp8-block", block=_block(quant), ignored=_patterns(quant, "modules_to_not_convert"))
    if method == "mxfp4":
        return Storage(dtype, "mxfp4-blocks")
    if method == "compressed-tensors":
        return _compressed(quant, dtype)
    raise CheckpointError(
        f"config.json asks for the quantisation {method!r}, whose stored layout is not known here",
        "known: fp8 in blocks, compressed-tensors int4 and mxfp4, mxfp4; give a folder with the headers instead of the config alone",
    )


def _dtype(whole: Stated, text: Stated) -> str:
    for section in (text, whole):
        for key in ("dtype", "torch_dtype"):
            if section.has(key):
                named = str(section.raw[key]).removeprefix("torch.")
                if named not in PLAIN_DTYPES:
                    raise CheckpointError(f"config.json has the unknown dtype {named} at {section.where}{key}", f"known: {[*PLAIN_DTYPES]}")
                return PLAIN_DTYPES[named]
    whole.assume("dtype is not in the config: taken as bfloat16 for everything that is not packed")
    return "BF16"


def _block(quant: Stated) -> tuple[int, int]:
    if not quant.has("weight_block_size"):
        raise CheckpointError(
            "config.json has fp8 weights without quantization_config.weight_block_size", "only scales per block are known here"
        )
    block = quant.integers("weight_block_size")
    if len(block) != 2 or min(block) < 1:
        raise CheckpointError(f"quantization_config.weight_block_size is {list(block)}, two positive integers are needed")
    return block[0], block[1]


def _patterns(quant: Stated, key: str) -> tuple[str, ...] | None:
    value: Any = quant.raw.get(key)
    return tuple(str(item) for item in value) if isinstance(value, Sequence) and not isinstance(value, str) and value else None


def _compressed(quant: Stated, dtype: str) -> Storage:
    ignored = _patterns(quant, "ignore")
    if ignored is None:
        quant.assume(f"{quant.where}ignore is not in the config: only the routed experts are taken as packed")
    form = quant.raw.get("format")
    if form == "mxfp4-pack-quantized":
        return Storage(dtype, "mxfp4-packed", ignored=ignored)
    if form == "pack-quantized":
        bits, group = _weights_entry(quant)
        if bits != 4:
            raise CheckpointError(f"pack-quantized weights of {bits} bits are not known here", "known: 4 bits")
        return Storage(dtype, "int4-packed", group=group, ignored=ignored)
    raise CheckpointError(f"the compressed-tensors format {form!r} is not known here", "known: mxfp4-pack-quantized, pack-quantized")


def _weights_entry(quant: Stated) -> tuple[int, int]:
    """(bits, group size) of the first config group."""
    groups = quant.raw.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = Stated(first, f"{quant.where}config_groups.").section("weights") if isinstance(first, dict) else None
    if weights is None:
        raise CheckpointError("config.json has packed weights without quantization_config.config_groups", "bits and group size are there")
    return weights.integer("num_bits"), weights.integer("group_size")
