"""What dead producers and dead collectors left behind: segments that are not in the store, and rings that were never made into segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loguru import logger

from traces.database import Entry
from traces.dead_ring import as_segment, is_dead, remains, settle
from traces.decode import Unreadable, decode, loss_rows
from traces.ledger import Ledger
from traces.segment import Torn, parse
from traces.spool import STORED, boots, numbers, segment_path


@dataclass(frozen=True, slots=True)
class Search:
    """Where to look. `dead_only` leaves living producers to themselves; `trusting` believes the marks of an earlier search;
    `tidy` deletes emptied rings and leaves marks."""

    spool: Path
    dead_only: bool = False
    trusting: bool = False
    tidy: bool = False


def lacking(search: Search, ledger: Ledger) -> bool:
    """Whether anything recorded is not in the store, by file names alone."""
    return any(True for _ in _missing(search, ledger)) or any(True for _ in _dead_rings(search.spool))


def entries(search: Search, ledger: Ledger) -> Iterator[tuple[Entry, Path]]:
    """Everything recorded that the store lacks, ready for it, and the file it is from.

    What cannot be read is named in the log and left where it is.
    """
    for path in _missing(search, ledger):
        try:
            content = path.read_bytes()
        except OSError as error:
            logger.warning("{} cannot be read: {}", path, error)
            continue
        torn_by_death = path.parent.with_suffix(".ring").exists()
        entry = _entry(content, path, quiet=torn_by_death)
        if entry is not None:
            yield entry, path
    for ring in _dead_rings(search.spool):
        yield from _from_ring(ring, search, ledger)


def _from_ring(ring: Path, search: Search, ledger: Ledger) -> Iterator[tuple[Entry, Path]]:
    left = remains(ring, lambda key: key in ledger)
    if left is None:
        logger.warning("{} is no ring", ring)
        return
    entry = _entry(as_segment(ring, left), ring) if left.records else None
    path: Path | None = ring
    if search.tidy:
        try:
            path = settle(ring, left)
        except OSError as error:
            logger.warning("{} stays where it is for now: {}", ring, error)
    if entry is not None and path is not None and entry.key not in ledger:
        yield entry, path


def mark_stored(search: Search, ledger: Ledger) -> None:
    """Marks dead boots of which the store has everything, so that they are not looked through again, and may be deleted for room."""
    for boot in _boots(search):
        if not boot.with_suffix(".ring").exists() and all((boot.parent.name, boot.name, seq) in ledger for seq in numbers(boot)):
            (boot / STORED).touch()


def _boots(search: Search) -> Iterator[Path]:
    """Boot folders to look through."""
    for producer in sorted(search.spool.iterdir()) if search.spool.is_dir() else ():
        for boot in boots(producer) if producer.is_dir() else ():
            ring = boot.with_suffix(".ring")
            alive = search.dead_only and ring.exists() and not is_dead(ring)
            if not alive and not (search.trusting and (boot / STORED).exists()):
                yield boot


def _missing(search: Search, ledger: Ledger) -> Iterator[Path]:
    """Segment files the ledger lacks."""
    for boot in _boots(search):
        for seq in numbers(boot):
            if (boot.parent.name, boot.name, seq) not in ledger:
                yield segment_path(boot, seq)


def _dead_rings(spool: Path) -> Iterator[Path]:
    return (path for path in sorted(spool.glob("*/*.ring")) if is_dead(path))


def _entry(content: bytes, path: Path, quiet: bool = False) -> Entry | None:
    try:
        (segment,) = parse(content)
        rows = decode(segment)
    except (Unreadable, Torn, ValueError) as error:
        if not quiet:
            logger.warning("{} cannot be stored: {}", path, error)
        return None
    return Entry(segment.key, loss_rows(rows, segment.header.producer).tables if rows.lost else rows.tables)
