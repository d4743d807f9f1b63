"""Pickles of plain values only: numbers, text, lists, tuples, dicts. A pickle that names any class or function is refused unread."""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

from traces.errors import UsageError

LARGEST = 256 << 20  # bytes: the dump of a ring with 20,000 entries and their stacks has about 40 MB


_DAMAGED = (pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError, MemoryError, OverflowError)


class UnsafePickle(UsageError):
    """The file would run code if it were loaded."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise UnsafePickle(f"it wants to load {module}.{name}", "do not open this file elsewhere either: only plain values are read")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise UnsafePickle(f"it refers to an object outside itself ({pid!r:.40})", "only dumps of plain values are read")


def plain(data: bytes) -> Any:
    """The value. Raises UnsafePickle, or UsageError for what is no whole pickle or too large."""
    if len(data) > LARGEST:
        raise UsageError(f"it has {len(data)} bytes; at most {LARGEST} are read", "lower TORCH_FR_BUFFER_SIZE and dump again")
    try:
        return _Plain(io.BytesIO(data)).load()
    except UnsafePickle:
        raise
    except _DAMAGED as error:
        raise UsageError(f"it is no whole pickle: {error or type(error).__name__}", "copy the file again: it may be cut off") from error
