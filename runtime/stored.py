"""How one weight lies in a checkpoint: as floats, or quantised with scales beside it. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from probes.checkpoint import TensorEntry
from runtime.arch import QuantSpec
from traces.errors import CheckpointError

FLOATS = ("F32", "BF16", "F16")
Kind = Literal["plain", "fp8_block", "mxfp4", "int4"]
_OTHER_MODEL = "config.json and weights belong to different models"
_AGAIN = "download the checkpoint again: half a model is not served"
# Stored values of a row's last dimension hold so many of ours.
_PACKED = {"mxfp4": 2, "int4": 8}
_PACKED_DTYPE = {"mxfp4": "U8", "int4": "I32"}
_SCALE_DTYPES = {"fp8_block": (*FLOATS, "F8_E8M0"), "mxfp4": ("U8", "F8_E8M0"), "int4": FLOATS}


@dataclass(frozen=True, slots=True)
class Stored:
    """A weight of logical `shape`: the tensor that holds it, the scales it needs, and every name it takes up."""

    name: str
    entry: TensorEntry
    shape: tuple[int, ...]
    kind: Kind = "plain"
    scale_name: str = ""
    scale: TensorEntry | None = None
    names: tuple[str, ...] = ()

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """`shape`, with the last dimension counted in stored values."""
        return (*self.shape[:-1], self.shape[-1] // _PACKED.get(self.kind, 1))


def exists(tensors: Mapping[str, TensorEntry], names: tuple[str, ...]) -> bool:
    """Whether the checkpoint holds one of `names`, plain or packed."""
    return any(name in tensors or packed in tensors for name in names for packed, _ in _packed_names(name))


def locate(tensors: Mapping[str, TensorEntry], names: tuple[str, ...], shape: tuple[int, ...], quant: QuantSpec | None) -> Stored:
    """The weight of logical `shape` under one of `names`. CheckpointError when it is missing, of another shape or dtype, or quantised
    in a way that config.json does not announce."""
    for name in names:
        if (entry := tensors.get(name)) is not None:
            return _plain(name, entry, shape) if entry.dtype in FLOATS else _fp8(tensors, name, entry, shape, quant)
        for packed, scale in _packed_names(name):
            if packed in tensors:
                return _packed(tensors, packed, scale, shape, quant)
    raise CheckpointError(f"tensor {names[0]} is missing from the checkpoint", _AGAIN)


def _packed_names(name: str) -> tuple[tuple[str, str], ...]:
    """Packed values and scales of a weight: compressed-tensors' names, and those of gpt-oss."""
    stem = name.removesuffix(".weight")
    return (f"{stem}.weight_packed", f"{stem}.weight_scale"), (f"{name}_blocks", f"{name}_scales")


def _plain(name: str, entry: TensorEntry, shape: tuple[int, ...]) -> Stored:
    if entry.shape != shape:
        raise _wrong_shape(name, entry, shape)
    return Stored(name, entry, shape, names=(name,))


def _fp8(tensors: Mapping[str, TensorEntry], name: str, entry: TensorEntry, shape: tuple[int, ...], quant: QuantSpec | None) -> Stored:
    if entry.dtype != "F8_E4M3" or quant is None or quant.kind != "fp8_block" or len(shape) < 2:
        raise _wrong_dtype(name, entry, quant)
    if entry.shape != shape:
        raise _wrong_shape(name, entry, shape)
    scale_name = f"{name}_scale_inv"
    blocks = tuple(-(-size // block) for size, block in zip(shape[-2:], quant.block, strict=True))
    scale = _scale(tensors, scale_name, (*shape[:-2], *blocks), "fp8_block")
    return Stored(name, entry, shape, "fp8_block", scale_name, scale, (name, scale_name))


def _packed(tensors: Mapping[str, TensorEntry], name: str, scale_name: str, shape: tuple[int, ...], quant: QuantSpec | None) -> Stored:
    entry = tensors[name]
    if quant is None or quant.kind == "fp8_block" or entry.dtype != _PACKED_DTYPE[quant.kind]:
        raise _wrong_dtype(name, entry, quant)
    if shape[-1] % quant.group:
        raise CheckpointError(f"{name}: rows of {shape[-1]} values are not whole groups of {quant.group}", _OTHER_MODEL)
    found = Stored(name, entry, shape, quant.kind)
    split = (*shape[:-1], shape[-1] // quant.group, quant.group // _PACKED[quant.kind])  # gpt-oss keeps the groups apart
    if entry.shape not in (found.packed_shape, split):
        raise _wrong_shape(name, entry, found.packed_shape)
    scale = _scale(tensors, scale_name, (*shape[:-1], shape[-1] // quant.group), quant.kind)
    sizes = name.removesuffix("_packed") + "_shape"  # compressed-tensors stores the logical shape too
    names = (name, scale_name, sizes) if sizes in tensors else (name, scale_name)
    return Stored(name, entry, shape, quant.kind, scale_name, scale, names)


def _scale(tensors: Mapping[str, TensorEntry], name: str, shape: tuple[int, ...], kind: str) -> TensorEntry:
    entry = tensors.get(name)
    if entry is None:
        raise CheckpointError(f"the scales {name} are missing from the checkpoint", _AGAIN)
    if entry.shape != shape:
        raise _wrong_shape(name, entry, shape)
    if entry.dtype not in _SCALE_DTYPES[kind]:
        raise CheckpointError(f"the scales {name} in {entry.file} have dtype {entry.dtype}", f"known: {', '.join(_SCALE_DTYPES[kind])}")
    return entry


def _wrong_shape(name: str, entry: TensorEntry, shape: tuple[int, ...]) -> CheckpointError:
    return CheckpointError(f"tensor {name} in {entry.file} has shape {list(entry.shape)}, expected {list(shape)}", _OTHER_MODEL)


def _wrong_dtype(name: str, entry: TensorEntry, quant: QuantSpec | None) -> CheckpointError:
    announced = "no quantisation" if quant is None else quant.kind
    message = f"tensor {name} in {entry.file} has dtype {entry.dtype}, config.json announces {announced}"
    return CheckpointError(message, f"supported as floats: {', '.join(FLOATS)}; quantised weights need their quantization_config")
