"""Small files of /proc and /sys, read many times: a kept descriptor costs about a third of opening the file each time."""

from __future__ import annotations

import os
from pathlib import Path


def read_text(path: str | os.PathLike[str]) -> str | None:
    """The file's text, or None where it is missing or may not be read: not measured is never zero."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def read_int(path: str | os.PathLike[str]) -> int | None:
    """One whole number, or None."""
    text = read_text(path)
    try:
        return None if text is None else int(text.strip())
    except ValueError:
        return None


class ProcFile:
    """One file, its descriptor kept open between reads (pread from 0 makes the kernel produce it anew)."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd: int | None = None

    def read(self) -> str | None:
        """The text now, or None where the file is missing, closed by the kernel (process gone) or not permitted."""
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._fd, 65536, 0).decode("utf-8", "replace")
        except OSError:
            self.close()
            return None

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.close()


def fields(text: str | None, separator: str | None = None) -> dict[str, str]:
    """Lines `key value...` as a dictionary; a colon at the end of the key is removed."""
    found: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, _, value = line.partition(separator) if separator else line.partition(" ")
        if separator is None and "\t" in key:
            key, _, value = line.partition("\t")
        found[key.strip().removesuffix(":")] = value.strip()
    return found


def kib(value: str | None) -> int | None:
    """`123 kB` in bytes."""
    return None if value is None else int(value.split()[0]) * 1024
