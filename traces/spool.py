"""Segments of one producer on its own disk, kept up to a quota after they were acknowledged, so that a lost store can be rebuilt.

    spool/<producer>/<boot>.ring                what was not yet made into a segment; locked as long as its process lives
    spool/<producer>/<boot>/<seq>.segment       oldest acknowledged ones are deleted when the quota asks for room
    spool/<producer>/<boot>/stored              written by a collector that found everything of a dead boot in its store

No fsync and no rename: the promise of the spool is to survive its process, the promise of an acknowledgement is to survive the host's
crash. A segment torn by the death of its process fails its checksum, and the ring still holds its records.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

QUOTA = 1 << 30
STORED = "stored"


class QuotaExceeded(Exception):
    """Segments that are not acknowledged fill the quota."""


@dataclass(slots=True, eq=False)
class Spooled:
    """A segment file. `content` is kept as long as it is cheaper than reading it back, or the disk has no room for it (`held`)."""

    path: Path
    seq: int
    size: int
    content: bytes | None = None
    held: bool = False

    def read(self) -> bytes:
        """The segment. Raises OSError."""
        return self.path.read_bytes() if self.content is None else self.content


def boots(folder: Path) -> list[Path]:
    """Boot folders of a producer, oldest first (a boot begins with its time)."""
    with os.scandir(folder) as entries:
        return sorted(Path(entry) for entry in entries if entry.is_dir())


def numbers(boot: Path) -> list[int]:
    """Segment numbers in a boot folder, ascending. Empty when it is gone."""
    try:
        names = os.listdir(boot)
    except FileNotFoundError:
        return []
    stems = (name.removesuffix(".segment") for name in names if name.endswith(".segment"))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def segment_path(boot: Path, seq: int) -> Path:
    return boot / f"{seq:08d}.segment"


class Spool:
    """The producer's side. Used by one thread."""

    def __init__(self, folder: Path, boot: str, quota: int = QUOTA) -> None:
        self.folder = folder / boot
        self.boot = boot
        self.quota = quota
        self.pending: deque[Spooled] = deque()
        self._prunable: deque[Spooled] = deque()
        self.used = 0
        self._adopt(folder)

    def _adopt(self, folder: Path) -> None:
        """Counts what earlier lives left towards the quota; what is stored may be deleted for room."""
        for boot in boots(folder) if folder.is_dir() else ():
            for seq in numbers(boot):
                path = segment_path(boot, seq)
                file = Spooled(path, seq, path.stat().st_size)
                self.used += file.size
                if (boot / STORED).exists():
                    self._prunable.append(file)

    def write(self, seq: int, segment: bytes) -> Spooled:
        """Adds a pending segment. Raises QuotaExceeded, OSError."""
        file = Spooled(segment_path(self.folder, seq), seq, len(segment), None if self.pending else segment)
        self._store(file.path, segment)
        self.pending.append(file)
        return file

    def hold(self, seq: int, segment: bytes) -> Spooled:
        """Adds a pending segment that stays in memory."""
        file = Spooled(segment_path(self.folder, seq), seq, len(segment), segment, True)
        self.pending.append(file)
        return file

    def unhold(self, file: Spooled) -> None:
        """Writes a held segment after all. Raises QuotaExceeded, OSError."""
        self._store(file.path, file.read())
        file.held = False

    def acknowledge(self, file: Spooled) -> None:
        """The store has it."""
        self.pending.remove(file)
        file.content = None
        if not file.held:
            self._prunable.append(file)

    def forget(self, file: Spooled) -> None:
        """Takes a pending segment that cannot be read any more out of the queue."""
        self.pending.remove(file)
        self.used -= file.size

    def _store(self, path: Path, segment: bytes) -> None:
        self._make_room(len(segment))
        try:
            _write(path, segment)
        except FileNotFoundError:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(path, segment)
        except OSError:
            if not self._prunable:
                raise
            while self._prunable:
                self._prune()
            _write(path, segment)
        self.used += len(segment)

    def _make_room(self, size: int) -> None:
        while self.used + size > self.quota and self._prunable:
            self._prune()
        if self.used + size > self.quota:
            raise QuotaExceeded

    def _prune(self) -> None:
        oldest = self._prunable.popleft()
        oldest.path.unlink(missing_ok=True)
        self.used -= oldest.size


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
