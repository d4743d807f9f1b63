"""How a matrix lies in the files: plain, or packed by one of the published quantisation schemes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtime.inventory.stated import Stated
from runtime.quantisation import Quantisation, read_quantisation
from traces.errors import CheckpointError

PLAIN_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One tensor of a stored matrix: what its name ends with, its shape and dtype, and how many parameters it holds."""

    suffix: str
    shape: tuple[int, ...]
    dtype: str
    values: int


@dataclass(frozen=True, slots=True)
class Storage:
    """The dtype of a checkpoint, and what is packed in it."""

    dtype: str  # of everything that is not packed
    quantisation: Quantisation | None = None  # of the rest; where it does not say what it ignores: everything but the routed experts

    def covers(self, module: str, routed: bool) -> bool:
        """Whether this linear module is packed."""
        if self.quantisation is None:
            return False
        if self.quantisation.ignored is None:
            return routed or self.quantisation.scheme == "fp8-block"
        return not any(_matches(pattern, module) for pattern in self.quantisation.ignored)

    def parts(self, module: str, rows: int, columns: int, routed: bool = False) -> list[StoredPart]:
        """The tensors of the weight [rows, columns] of a linear module."""
        count, how = rows * columns, self.quantisation
        if how is None or not self.covers(module, routed):
            return [StoredPart(".weight", (rows, columns), self.dtype, count)]
        if how.scheme == "fp8-block":
            scale = (-(-rows // how.block[0]), -(-columns // how.block[1]))
            return [StoredPart(".weight", (rows, columns), "F8_E4M3", count), StoredPart(".weight_scale_inv", scale, "F32", 0)]
        if how.scheme == "int4-packed":
            return [
                StoredPart(".weight_packed", (rows, -(-columns // 8)), "I32", count),
                StoredPart(".weight_scale", (rows, columns // how.group), self.dtype, 0),
                StoredPart(".weight_shape", (2,), "I32", 0),
            ]
        return [
            StoredPart(".weight_packed", (rows, columns // 2), "U8", count),
            StoredPart(".weight_scale", (rows, columns // how.group), "U8", 0),
        ]


def _matches(pattern: str, module: str) -> bool:
    """compressed-tensors: a name, or a regular expression after "re:" that must match from the beginning."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return module == pattern or module.endswith("." + pattern)


def read_storage(whole: Stated, text: Stated) -> Storage:
    """From `dtype` and `quantization_config`, wherever they stand. CheckpointError for a scheme whose layout is not known here."""
    quantisation = read_quantisation(whole.raw)
    if quantisation is not None and quantisation.ignored is None and quantisation.scheme in ("int4-packed", "mxfp4-packed"):
        whole.assume("quantization_config.ignore is not in the config: only the routed experts are taken as packed")
    return Storage(_dtype(whole, text), quantisation)


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
