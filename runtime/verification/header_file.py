"""One safetensors header, read without trust: everything that is wrong with it is listed, nothing is raised.

Format: huggingface/safetensors, README "Format"; see probes/checkpoint.py, which refuses at the first fault instead.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from probes.checkpoint import ITEM_BYTES, MAX_HEADER
from runtime.verification.document import Problem, ProblemKind

LARGEST = 1 << 62  # bytes; an offset beyond it is no offset


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A tensor as a header states it. Offsets count from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]


@dataclass(slots=True)
class HeaderFile:
    """What one shard holds. `start` is where its data begins; entries that cannot be are left out and in `problems`."""

    file: str
    start: int = 0
    size: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, kind: ProblemKind, detail: str, tensor: str = "") -> None:
        self.problems.append(Problem(self.file, tensor, kind, detail))


def read_header_file(path: Path) -> HeaderFile:
    """Reads 8 bytes and the header; the rest of the file is only measured."""
    found = HeaderFile(path.name)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            found.problem("unreadable", "it is no regular file")
            return found
        with path.open("rb") as stream:
            found.size = os.fstat(stream.fileno()).st_size
            raw = _raw_header(stream.read(8), found)
            body = stream.read(raw) if raw is not None else b""
    except OSError as error:
        found.problem("unreadable", f"{error.strerror or error}")
        return found
    if raw is None:
        return found
    found.start = 8 + raw
    if len(body) != raw:
        found.problem("unreadable", f"the header of {raw} bytes could be read only up to byte {len(body)}")
        return found
    _decode(body, found)
    _cover(found)
    return found


def _raw_header(first: bytes, found: HeaderFile) -> int | None:
    """Length of the header, or None with a problem."""
    if len(first) < 8:
        found.problem("truncated", f"{found.size} bytes are no safetensors file")
        return None
    length = int.from_bytes(first, "little")
    if length > MAX_HEADER:
        found.problem("bad-header", f"its header claims {length} bytes; {MAX_HEADER} are the most")
        return None
    if 8 + length > found.size:
        found.problem("truncated", f"its header claims {length} bytes, the file has {found.size}")
        return None
    return length


def _decode(body: bytes, found: HeaderFile) -> None:
    try:
        raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        found.problem("bad-header", f"its header is no JSON object: {error}")
        return
    raw.pop("__metadata__", None)
    if body.count(b'"data_offsets"') > len(raw):
        _name_duplicates(body, found)
    decode = msgspec.json.Decoder(Entry).decode
    for name, part in raw.items():
        try:
            entry = decode(part)
        except (msgspec.DecodeError, OverflowError) as error:
            found.problem("bad-header", f"its entry cannot be read: {error}", name)
            continue
        if _plausible(name, entry, found):
            found.entries[name] = entry


def _name_duplicates(body: bytes, found: HeaderFile) -> None:
    """msgspec keeps the last of equal keys; the standard library shows them all."""
    names = Counter(name for name, _ in json.loads(body, object_pairs_hook=list))
    for name, count in names.items():
        if count > 1:
            found.problem("duplicate", f"{count} entries of this name in one header", name)


def _plausible(name: str, entry: Entry, found: HeaderFile) -> bool:
    begin, end = entry.data_offsets
    item = ITEM_BYTES.get(entry.dtype)
    if item is None:
        found.problem("wrong-dtype", f"{entry.dtype} is no dtype of the format", name)
        return False
    if not 0 <= begin <= end < LARGEST or min(entry.shape, default=0) < 0:
        found.problem("bad-header", f"offsets {begin} to {end} with shape {list(entry.shape)} cannot be", name)
        return False
    needed = math.prod(entry.shape) * item
    if needed != end - begin:
        found.problem("bad-header", f"{list(entry.shape)} of {entry.dtype} needs {needed} bytes, its offsets span {end - begin}", name)
        return False
    if found.start + end > found.size:
        found.problem("truncated", f"it ends {found.start + end - found.size} bytes beyond the file's {found.size} bytes", name)
    return True


def _cover(found: HeaderFile) -> None:
    """The tensors must tile the data; what is left out already explains a hole, so holes are named only in files without other faults."""
    sound = not found.problems
    at, last = 0, ""
    for name, entry in sorted(found.entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin < at and entry.nbytes:
            found.problem("overlap", f"it shares {min(at, end) - begin} bytes with {last}", name)
        elif begin > at and sound:
            found.problem("hole", f"{begin - at} bytes before it belong to no tensor", name)
        if end > at:
            at, last = end, name
    if sound and found.entries and found.start + at < found.size:
        found.problem("hole", f"{found.size - found.start - at} bytes at its end belong to no tensor")
