"""Small file operations with one meaning each: atomic write, file lock, read JSON, and refusals a person can read."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from traces.errors import NotWritable, UnknownRun

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT)


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turns a write below `path` that is refused, or finds no room, into NotWritable; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        place = error.filename or path
        hint = "make it writable, or set WORKBENCH_RUNS to a folder of yours"
        raise NotWritable(f"cannot write {place}: {error.strerror}", hint) from error


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock between processes. The kernel releases it when the holder dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Readers see the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def readable_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises UnknownRun naming the file when it is absent or not an object."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UnknownRun(f"cannot read {path}: {error}", "`workbench runs` lists the runs there are") from error
    if not isinstance(content, dict):
        raise UnknownRun(f"{path} holds no JSON object", "`workbench runs` lists the runs there are")
    return content
