"""Reads every stored byte once, a piece at a time, and hands it to whoever examines it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runtime.verification.document import Problem
from runtime.verification.header_file import Entry, HeaderFile

PIECE = 8 << 20  # bytes read at once
THREADS = 4

Pread = Callable[[int, int, int], bytes]
Told = Callable[[int], None]  # bytes read so far


class Watcher(Protocol):
    """Examines one tensor. `feed` gets its bytes in order, whole rows at a time; `done` what is wrong with it."""

    def feed(self, piece: memoryview) -> None: ...

    def done(self) -> list[Problem]: ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """A stored tensor, to be examined."""

    file: str
    name: str
    entry: Entry


Watch = Callable[[Tensor], list[Watcher]]


def scan(root: Path, files: list[HeaderFile], watch: Watch, told: Told | None = None, pread: Pread = os.pread) -> list[Problem]:
    """Reads all tensors whose header is sound. A file that cannot be read is a problem, and the next is read."""
    problems: list[Problem] = []
    read = 0
    for file in files:
        for tensor, found in _scan_file(root, file, watch, pread):
            problems += found
            read += tensor.entry.nbytes
            if told is not None:
                told(read)
    return problems


def _scan_file(root: Path, file: HeaderFile, watch: Watch, pread: Pread) -> Iterator[tuple[Tensor, list[Problem]]]:
    sound = [(name, entry) for name, entry in file.entries.items() if file.start + entry.data_offsets[1] <= file.size]
    tensors = [Tensor(file.file, name, entry) for name, entry in sorted(sound, key=lambda one: one[1].data_offsets)]
    if not tensors:
        return
    try:
        descriptor = os.open(root / file.file, os.O_RDONLY)
    except OSError as error:
        yield tensors[0], [Problem(file.file, "", "unreadable", error.strerror or str(error))]
        return
    try:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="verify") as pool:
            found = pool.map(lambda tensor: _one(descriptor, file.start, tensor, watch(tensor), pread), tensors)
            yield from zip(tensors, found, strict=True)
    finally:
        os.close(descriptor)


def _one(descriptor: int, start: int, tensor: Tensor, watchers: list[Watcher], pread: Pread) -> list[Problem]:
    try:
        for piece in _pieces(descriptor, start, tensor.entry, pread):
            for watcher in watchers:
                watcher.feed(piece)
    except OSError as error:
        return [Problem(tensor.file, tensor.name, "unreadable", f"{error.strerror or error}")]
    return [problem for watcher in watchers for problem in watcher.done()]


def _pieces(descriptor: int, start: int, entry: Entry, pread: Pread) -> Iterator[memoryview]:
    """Whole rows of the last dimension, about `PIECE` bytes at a time."""
    begin, end = entry.data_offsets
    rows = max(1, _rows(entry))
    row = max(1, (end - begin) // rows)
    step = max(1, PIECE // row) * row
    for at in range(begin, end, step):
        yield memoryview(_exactly(descriptor, min(step, end - at), start + at, pread))


def _exactly(descriptor: int, nbytes: int, offset: int, pread: Pread) -> bytes:
    parts = []
    while nbytes:
        part = pread(descriptor, nbytes, offset)
        if not part:
            raise OSError(f"the file ends at byte {offset}")
        parts.append(part)
        nbytes -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _rows(entry: Entry) -> int:
    count = 1
    for size in entry.shape[:-1]:
        count *= size
    return count
