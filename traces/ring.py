"""A memory-mapped ring of records that outlives its process.

Writers (any thread of one process) reserve at `pos` and stay below `limit`; both are plain attributes read by generated code (records.py).
Everything rarer happens here under a lock: going around the end, moving the tail, closing. The file begins with a description of the record
layouts and two state slots written in turn, so that after kill -9 a reader knows where the tail is and which segment was being made of it.
The owner holds a file lock on the ring for as long as it lives, so a reader can tell a dead ring from a living one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

MAGIC = b"WBRING1\0"
START = 32768
HEAD = struct.Struct("<8sQI")
SLOT = struct.Struct("<QQQQI")
SLOTS = (64, 128)
META_AT = 256
# Zero bytes kept between head and tail: whoever walks the ring after a crash meets them and stops.
_GUARD = 64
# A segment is at most a ring, and a collector takes bodies of up to 64 MiB.
LARGEST = 48 << 20
_ZEROS = bytes(1 << 20)


@dataclass(frozen=True, slots=True)
class RingState:
    """Positions count bytes since the ring was made. Bytes [tail, inflight) were being made into segment `seq`."""

    tail: int
    inflight: int
    seq: int


class Ring:
    """Single-process ring. `path` None keeps it in anonymous memory (not crash safe)."""

    __slots__ = (
        "_busy", "_closed", "_fd", "_freed", "_generation", "_lap", "_lock", "_state",
        "capacity", "detail_limit", "drops", "errors", "limit", "memory", "path", "pos",
    )  # fmt: skip

    def __init__(self, path: Path | None, capacity: int = 16 << 20, meta: bytes = b"") -> None:
        self.capacity = min(LARGEST, max(1 << 16, capacity + 7 & -8))
        self.path = path
        self.drops: Counter[tuple[str, str]] = Counter()
        self.errors: list[str] = []
        self._lock = threading.RLock()
        self._busy = self._closed = False
        self._generation = 0
        self._lap = 0
        self._freed = 0
        self._fd, self.memory = _map(path, START + self.capacity)
        if len(meta) > START - META_AT:
            raise ValueError(f"ring description of {len(meta)} bytes does not fit")
        self.memory[META_AT : META_AT + len(meta)] = meta
        self._state = RingState(0, 0, 0)
        self._save(self._state)
        HEAD.pack_into(self.memory, 0, MAGIC, self.capacity, len(meta))
        self.pos = START
        self._relimit()

    @property
    def durable(self) -> bool:
        return self.path is not None

    @property
    def head(self) -> int:
        return self._lap * self.capacity + self.pos - START

    @property
    def tail(self) -> int:
        return self._state.tail

    @property
    def used(self) -> int:
        return self.head - self._state.tail

    def write(self, record: bytes) -> bool:
        """Appends one packed record. False when there is no room."""
        with self._lock:
            at = self.room(len(record), False)
            if at >= 0:
                self.memory[at : at + len(record)] = record
            return at >= 0

    def locked(self, write: Callable[..., None]) -> Callable[..., None]:
        """The same writer under the ring's lock."""

        def guarded(*values: object) -> None:
            with self._lock:
                write(*values)

        return guarded

    def room(self, size: int, detail: bool) -> int:
        """Reserves where the plain path could not: at the end of the memory or of the free space. -1 when there is no room."""
        with self._lock:
            # Busy: a signal handler or the garbage collector came in while this thread was here.
            if self._busy or self._closed:
                return -1
            self._busy = True
            # From here every other thread comes to this lock instead of reserving.
            self.limit = self.detail_limit = 0
            try:
                return self._reserve(size, detail)
            finally:
                self._relimit()
                self._busy = False

    def _reserve(self, size: int, detail: bool) -> int:
        rest = START + self.capacity - self.pos
        allowed = self._freed + (self.capacity * 3 // 4 if detail else self.capacity - _GUARD)
        around = size > rest
        if self.head + (rest if around else 0) + size > allowed or size > self.capacity // 4:
            return -1
        if around:
            if rest:
                struct.pack_into("<Q", self.memory, self.pos, rest >> 3)
            self._lap += 1
            self.pos = START
        at = self.pos
        self.pos = at + size
        return at

    def _relimit(self) -> None:
        if self._closed:
            self.limit = self.detail_limit = -1
            return
        end = START + self.capacity
        free = self._freed - self._lap * self.capacity + START
        self.limit = min(end, free + self.capacity - _GUARD)
        self.detail_limit = min(end, free + self.capacity * 3 // 4)

    def take(self) -> tuple[bytes, int]:
        """Copy of everything not yet released, and the position after it."""
        with self._lock:
            head, tail = self.head, self._state.tail
        return read_between(self.memory, self.capacity, tail, head), head

    def announce(self, seq: int, end: int) -> None:
        """Says that [tail, end) is about to exist as segment `seq`."""
        self._save(RingState(self._state.tail, end, seq))

    def release(self, end: int, next_seq: int) -> None:
        """Gives [tail, end) back to the writers."""
        start = self._state.tail
        self._save(RingState(end, end, next_seq))
        self._zero(start, end)
        with self._lock:
            self._freed = end
            self._relimit()

    def _save(self, state: RingState) -> None:
        self._generation += 1
        at, note = pack_state(self._generation, state)
        self.memory[at : at + len(note)] = note
        self._state = state

    def _zero(self, start: int, end: int) -> None:
        while start < end:
            at = start % self.capacity
            size = min(end - start, self.capacity - at, len(_ZEROS))
            self.memory[START + at : START + at + size] = _ZEROS[:size]
            start += size

    def drop(self, table: str, reason: str, rows: int = 1) -> None:
        """Counts rows lost."""
        with self._lock:
            self.drops[table, reason] += rows

    def refuse(self, table: str, error: Exception) -> None:
        """Counts a row whose values do not fit its columns, and keeps the first few errors to be shown."""
        with self._lock:
            self.drops[table, "invalid"] += 1
            if len(self.errors) < 20:
                self.errors.append(f"{table}: {type(error).__name__}: {error}")

    def take_drops(self) -> dict[tuple[str, str], int]:
        with self._lock:
            taken, self.drops = dict(self.drops), Counter()
        return taken

    def take_errors(self) -> list[str]:
        with self._lock:
            taken, self.errors = self.errors, []
        return taken

    def abandon(self) -> None:
        """For a forked child: the ring belongs to the parent. Takes no lock, for another thread may have held it at the fork."""
        self._lock = threading.RLock()
        self._busy = False
        self.disable()

    def disable(self) -> None:
        """Makes every further write a counted drop."""
        with self._lock:
            if self._fd >= 0 and not self._closed:
                os.close(self._fd)
            self._closed = True
            self._relimit()

    def close(self, remove: bool = False) -> None:
        """Stops writers, lets go of the file lock, and deletes the file if everything in it is elsewhere."""
        self.disable()
        if remove and self.path is not None:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _map(path: Path | None, size: int) -> tuple[int, mmap.mmap]:
    """Every block is allocated now: a page that cannot be written later would kill the process with SIGBUS. Raises OSError."""
    if path is None:
        return -1, mmap.mmap(-1, size)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(fd, 0, size)
        return fd, mmap.mmap(fd, size)
    except OSError:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise


def pack_state(generation: int, state: RingState) -> tuple[int, bytes]:
    """Where a state is noted, and the note. Two places in turn: one of them is always whole."""
    body = struct.pack("<QQQQ", generation, state.tail, state.inflight, state.seq)
    return SLOTS[generation & 1], body + struct.pack("<I", zlib.crc32(body))


def read_between(memory: mmap.mmap | bytes, capacity: int, start: int, end: int) -> bytes:
    """Bytes [start, end) of the ring, joined where they go around."""
    if start == end:
        return b""
    first, last = START + start % capacity, START + (end - 1) % capacity + 1
    return bytes(memory[first:last]) if first < last else bytes(memory[first : START + capacity]) + bytes(memory[START:last])
