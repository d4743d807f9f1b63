"""Positional reads of one shard: direct where that pays and the file system allows it, retried, counted."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from traces.errors import CheckpointError

PAGE = 4096  # O_DIRECT wants file offset, length and address aligned to the logical block size; 4096 serves every device
Pread = Callable[[int, list[memoryview], int], int]


def staging(nbytes: int) -> memoryview:
    """A page-aligned buffer that holds any `nbytes` of a file with the alignment around them."""
    return memoryview(mmap.mmap(-1, nbytes + 2 * PAGE))


class ShardFile:
    """An open shard. Safe for reads from several threads."""

    def __init__(self, path: Path, direct: bool, retries: int, pread: Pread = os.preadv) -> None:
        self.path = path
        self.retries = 0  # reads repeated so far
        self._allowed = retries
        self._pread = pread
        self.source = "direct" if direct and hasattr(os, "O_DIRECT") else "buffered"
        try:
            if self.source == "direct":
                try:
                    self._fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
                except OSError:  # tmpfs and some network file systems refuse O_DIRECT
                    self.source = "buffered"
            if self.source == "buffered":
                self._fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(
                f"{path.name} cannot be opened: {error.strerror}", "check that the shard exists and is readable"
            ) from error

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)

    def read(self, offset: int, nbytes: int, buffer: memoryview) -> memoryview:
        """Bytes offset .. offset + nbytes of the file, as a view into `buffer` (from `staging`). CheckpointError when it fails."""
        lead = offset % PAGE if self.source == "direct" else 0
        want = -(-(lead + nbytes) // PAGE) * PAGE if self.source == "direct" else nbytes
        for attempt in range(self._allowed + 1):
            try:
                self._fill(buffer, offset - lead, want, lead + nbytes)
                return buffer[lead : lead + nbytes]
            except OSError as error:
                if attempt == self._allowed:
                    message = f"{self.path.name} cannot be read at byte {offset} after {attempt + 1} attempts: {error}"
                    raise CheckpointError(message, "check the disk or the network file system, then load again") from error
                self.retries += 1
                time.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")

    def _fill(self, buffer: memoryview, offset: int, want: int, need: int) -> None:
        """Reads until `need` bytes are there; asks for `want`, which may reach beyond the end of the file."""
        got = 0
        while got < need:
            count = self._pread(self._fd, [buffer[got:want]], offset + got)
            if count <= 0:
                raise OSError(f"the file ends at byte {offset + got}: it was truncated after its header was read")
            got += count
            if got < need and self.source == "direct":
                got -= got % PAGE  # a short direct read continues at an aligned offset
