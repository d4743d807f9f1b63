"""Reading the ring of a process that is gone."""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from traces.folder import write_atomic
from traces.ring import HEAD, MAGIC, META_AT, SLOT, SLOTS, START, RingState, pack_state, read_between
from traces.segment import Torn, build, parse
from traces.spool import segment_path
from traces.walk import sound_prefix


def is_dead(path: Path) -> bool:
    """Whether the owner is gone: it holds a lock on its ring as long as it lives. False for a ring that cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Remains:
    """The records a dead ring still holds, and the number their segment has to have. May be empty."""

    records: bytes
    state: RingState
    generation: int
    tables: bytes


def remains(path: Path, stored: Callable[[tuple[str, str, int]], bool]) -> Remains | None:
    """What is left in the ring of a dead process; None for a file that is no ring."""
    producer, boot = path.parent.name, path.stem
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if len(content) < START or content[:8] != MAGIC:
        return None
    _, capacity, meta_size = HEAD.unpack_from(content, 0)
    found = _state(content)
    if found is None or len(content) < START + capacity:
        return None
    generation, state = found
    start, seq = state.tail, state.seq
    if stored((producer, boot, seq)) or is_whole(segment_path(path.parent / boot, seq)):
        # It died between writing the segment and letting go of its records.
        start, seq = state.inflight, state.seq + 1
    records = read_between(content, capacity, start, start + capacity)
    records = records[: sound_prefix(records)]
    return Remains(records, RingState(start, start + len(records), seq), generation, content[META_AT : META_AT + meta_size])


def as_segment(path: Path, left: Remains) -> bytes:
    """The remains of a ring, framed as the next segment of its boot."""
    return build(path.parent.name, path.stem, left.state.seq, time.time_ns(), left.tables, left.records)


def settle(path: Path, left: Remains) -> Path | None:
    """Turns a dead ring into the last segment of its boot; None when it held nothing. Raises OSError.

    The ring first notes which bytes become which segment: whoever is interrupted, the records exist once.
    """
    target = None
    if left.records:
        at, note = pack_state(left.generation + 1, left.state)
        with path.open("r+b") as ring:
            ring.seek(at)
            ring.write(note)
        target = segment_path(path.parent / path.stem, left.state.seq)
        target.parent.mkdir(exist_ok=True)
        write_atomic(target, as_segment(path, left))
    path.unlink(missing_ok=True)
    return target


def _state(content: bytes) -> tuple[int, RingState] | None:
    """Generation and content of the newer of the two state slots that is whole."""
    best: tuple[int, RingState] | None = None
    for at in SLOTS:
        generation, tail, inflight, seq, crc = SLOT.unpack_from(content, at)
        if zlib.crc32(content[at : at + SLOT.size - 4]) == crc and (best is None or generation > best[0]):
            best = generation, RingState(tail, inflight, seq)
    return best


def is_whole(path: Path) -> bool:
    """Whether a segment file was written to its end."""
    try:
        return len(list(parse(path.read_bytes()))) == 1
    except (OSError, Torn):
        return False
