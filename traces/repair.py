"""A store's file that DuckDB cannot open any more: what can be read of it is kept, the rest comes back from the spools."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import duckdb
from loguru import logger

_POSITION = re.compile(r"WAL.*byte position (\d+)", re.DOTALL)


def set_aside(path: Path, error: duckdb.Error) -> bool:
    """Moves the damaged part of a store out of the way, under a name with .damaged in it. False when the error is not about damage.

    A WAL is cut at the first damaged entry, so that every transaction before it stays. A damaged main file is moved away whole.
    """
    message = str(error)
    wal = path.with_name(f"{path.name}.wal")
    stamp = f"damaged-{time.time_ns():x}"
    position = _POSITION.search(message)
    if "WAL" in message and wal.exists():
        shutil.move(wal, wal.with_name(f"{wal.name}.{stamp}"))
        if position:
            content = wal.with_name(f"{wal.name}.{stamp}").read_bytes()
            wal.write_bytes(content[: int(position[1])])
        logger.warning("the write-ahead log of {} is damaged; it was cut at byte {}: {}", path.name, position[1] if position else 0, error)
        return True
    if isinstance(error, (duckdb.IOException, duckdb.SerializationException)) and _damaged(message):
        for file in (path, wal):
            if file.exists():
                shutil.move(file, file.with_name(f"{file.name}.{stamp}"))
        logger.warning("{} is damaged and was moved away: {}", path.name, error)
        return True
    return False


def _damaged(message: str) -> bool:
    return "not a valid DuckDB database" in message or "Corrupt" in message or "checksum" in message.lower()
