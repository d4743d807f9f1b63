"""Reads a Hugging Face checkpoint's config, index and safetensors headers, and nothing else: no weight byte, no torch.

Format of a safetensors file (huggingface/safetensors, README "Format"): 8 bytes little-endian header length N, N bytes of JSON
{name: {dtype, shape, data_offsets: [begin, end]}}, then the data; offsets count from the end of the header, without holes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traces.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 100 << 20  # the limit of the reference implementation
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies."""

    file: str  # shard file name, relative to the checkpoint folder
    dtype: str  # as the header spells it: F32, BF16 ...
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose headers were read and found consistent with its index and with the file lengths."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, TensorEntry]

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Reads every header. CheckpointError names the file or tensor at fault, and what to do."""
        root = Path(path)
        config = read_config(root)
        return cls(root, config, read_tensors(root))

    @property
    def files(self) -> list[str]:
        return sorted({entry.file for entry in self.tensors.values()})

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(entry.nbytes for entry in self.tensors.values())


_AGAIN = "download the checkpoint again, or save it again with save_pretrained"


def read_tensors(root: Path) -> dict[str, TensorEntry]:
    """Every tensor of the folder by name, from its headers alone; config.json is not needed. Raises CheckpointError."""
    weight_map = _read_index(root)
    if weight_map is None:
        return _read_header(root, SINGLE)
    files = sorted(set(weight_map.values()))
    _check_files(root, files)
    tensors: dict[str, TensorEntry] = {}
    for file in files:
        for name, entry in _read_header(root, file).items():
            if name in tensors:
                raise CheckpointError(f"tensor {name} is stored twice, in {tensors[name].file} and in {file}", _AGAIN)
            tensors[name] = entry
    _check_index(weight_map, tensors)
    return tensors


def read_config(path: str | Path) -> dict[str, Any]:
    """config.json alone: enough to refuse an architecture before anything else is read."""
    root = Path(path)
    if not root.is_dir():
        raise CheckpointError(f"{root} is not a folder", "give the folder that holds config.json and *.safetensors")
    config = _read_json(root / "config.json")
    if not isinstance(config, dict):
        raise CheckpointError(f"{root / 'config.json'} holds no JSON object", _AGAIN)
    return config


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing", "give the folder of a Hugging Face checkpoint") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", _AGAIN) from error


def _read_index(root: Path) -> dict[str, str] | None:
    """Tensor name -> file, or None for a checkpoint of one file."""
    if (root / INDEX).exists():
        index = _read_json(root / INDEX)
        weight_map = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{root / INDEX} has no weight_map", _AGAIN)
        for file in set(weight_map.values()):
            # A file name from the index must not leave the folder.
            if not isinstance(file, str) or Path(file).name != file:
                raise CheckpointError(f"{root / INDEX} names {file!r}, which is not a file of this folder", _AGAIN)
        return weight_map
    if (root / SINGLE).exists():
        _check_files(root, [SINGLE])
        return None
    if any(root.glob("*.bin")) or any(root.glob("*.pt")):
        raise CheckpointError(
            f"{root} holds pickled weights only", "convert them to safetensors: pickles can execute code and are not read"
        )
    raise CheckpointError(f"{root} holds neither {INDEX} nor {SINGLE}", "finish the download: weights in safetensors are needed")


def _check_files(root: Path, listed: list[str]) -> None:
    present = {p.name for p in root.glob("*.safetensors")}
    if missing := sorted(set(listed) - present):
        raise CheckpointError(f"{len(missing)} of {len(listed)} shards are missing, first {missing[0]}", f"download {missing[0]} again")
    if unlisted := sorted(present - set(listed)):
        hint = f"remove it, or use the {INDEX} that belongs to it: shards of two checkpoints may be mixed"
        raise CheckpointError(f"shard {unlisted[0]} is not listed in the index ({len(unlisted)} such)", hint)


def _check_index(weight_map: dict[str, str], tensors: dict[str, TensorEntry]) -> None:
    for name, file in weight_map.items():
        entry = tensors.get(name)
        if entry is None:
            raise CheckpointError(f"tensor {name} is listed in {file} but is not in its header", f"download {file} again")
        if entry.file != file:
            raise CheckpointError(f"tensor {name} lies in {entry.file}, the index says {file}", _AGAIN)
    if extra := sorted(set(tensors) - set(weight_map)):
        raise CheckpointError(f"tensor {extra[0]} in {tensors[extra[0]].file} is not in the index ({len(extra)} such)", _AGAIN)


def _read_header(root: Path, file: str) -> dict[str, TensorEntry]:
    """The entries of one shard; checks lengths, offsets and shapes against the file's size."""
    path = root / file
    size = path.stat().st_size
    again = f"download {file} again"
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > MAX_HEADER or 8 + length > size:
            raise CheckpointError(f"{file} is truncated or no safetensors file: {size} bytes cannot hold its header", again)
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise CheckpointError(f"{file} has a damaged header: {error}", again) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file} has a damaged header: no JSON object", again)
    entries = {name: _entry(file, name, raw, 8 + length) for name, raw in header.items() if name != "__metadata__"}
    for name, entry in entries.items():
        if entry.offset + entry.nbytes > size:
            lacking = entry.offset + entry.nbytes - size
            raise CheckpointError(f"{file} is truncated: tensor {name} ends {lacking} bytes beyond its {size} bytes", again)
    _check_cover(file, entries, 8 + length, size)
    return entries


def _entry(file: str, name: str, raw: Any, start: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = raw["dtype"], tuple(raw["shape"]), raw["data_offsets"]
        count = math.prod(shape)
        valid = 0 <= begin <= end and min(shape, default=0) >= 0
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} has a damaged header: tensor {name}: {error!r}", f"download {file} again") from error
    if dtype not in ITEM_BYTES:
        raise CheckpointError(f"tensor {name} in {file} has the unknown dtype {dtype}", f"known: {', '.join(ITEM_BYTES)}")
    if not valid or end - begin != count * ITEM_BYTES[dtype]:
        detail = f"{list(shape)} of {dtype} needs {count * ITEM_BYTES[dtype]} bytes, its offsets span {end - begin}"
        raise CheckpointError(f"{file} has a damaged header: tensor {name}: {detail}", f"download {file} again")
    return TensorEntry(file, dtype, shape, start + begin, end - begin)


def _check_cover(file: str, entries: dict[str, TensorEntry], start: int, size: int) -> None:
    """The tensors must tile the data exactly."""
    at = start
    # Zero-size tensors share their offset with the next one and come first.
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if entry.offset != at:
            problem = "overlaps the one before it" if entry.offset < at else f"leaves a hole of {entry.offset - at} bytes before it"
            raise CheckpointError(f"{file}: tensor {name} {problem}", f"download {file} again")
        at += entry.nbytes
    if at != size:
        raise CheckpointError(f"{file} has {size - at} bytes that belong to no tensor", f"download {file} again")
