"""Tensors that an engine wrote to a file: .npy, .npz, .safetensors, .pt. Nothing in a file is executed."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.errors import UsageError

LIMIT = 2 << 30  # bytes of one file; a picture of 16 million pixels has 200 MB
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}


def read_dump(path: Path) -> dict[str, NDArray[Any]]:
    """Every tensor by name; one without a name is "pixel_values". bfloat16 becomes float32. UsageError for what cannot be read."""
    kind = path.suffix.lower()
    readers = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors, ".pt": _torch, ".pth": _torch}
    if kind not in readers:
        raise UsageError(f"{path.name} is none of {', '.join(readers)}", "dump pixel_values with numpy.save, safetensors or torch.save")
    try:
        if path.stat().st_size > LIMIT:
            raise UsageError(f"{path.name} has more than {LIMIT >> 30} GiB", "dump the tensor of one picture")
        return readers[kind](path)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{path.name} cannot be read: {type(error).__name__}: {error}", "dump it again") from error


def _npy(path: Path) -> dict[str, NDArray[Any]]:
    return {"pixel_values": np.load(path, allow_pickle=False)}


def _npz(path: Path) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(path) as packed:
        if sum(one.file_size for one in packed.infolist()) > LIMIT:
            raise UsageError(f"{path.name} has more than {LIMIT >> 30} GiB unpacked", "dump the tensor of one picture")
    with np.load(path, allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def _safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """The header is read here because safetensors' numpy side has no bfloat16."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, one in header.items():
        if name == "__metadata__":
            continue
        begin, end = one["data_offsets"]
        raw = data[8 + length + begin : 8 + length + end]
        if one["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, _DTYPES[one["dtype"]])
        found[name] = values.reshape(one["shape"])
    return found


def _torch(path: Path) -> dict[str, NDArray[Any]]:
    import torch

    held = torch.load(path, map_location="cpu", weights_only=True)
    tensors = {"pixel_values": held} if isinstance(held, torch.Tensor) else dict(held)
    return {
        str(name): (value.float() if value.is_floating_point() else value).detach().numpy()
        for name, value in tensors.items()
        if isinstance(value, torch.Tensor)
    }
