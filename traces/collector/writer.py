"""The one thread that writes: it groups what arrives, commits it in one transaction, and only then says so.

A commit costs an fdatasync. While one is under way everything that arrives waits and goes into the next, so many small posts share one
sync without anybody waiting for a clock.
"""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa
from loguru import logger

from traces.database import Entry, connect, lock_down, read_ledger, repaired, rollback, write
from traces.decode import Rows, arrow_rows
from traces.ledger import Ledger
from traces.schema import EVENT

MOST_QUEUED = 128 << 20
_GROUP_BYTES = 32 << 20
# A commit costs some ms of CPU for every table in it however few rows it has. A group waits _GATHER seconds for others to join unless it
# is large; a small one of patient rows waits until _SPACING seconds after the last commit, so that idle ranks cost next to nothing.
_SMALL, _LARGE = 4096, 32768
_GATHER, _SPACING = 0.008, 1.0
_IDLE = 5.0
_REOPEN = 1.0
# Errors of the rows themselves; every other error is the store's and the producer keeps its segment.
_BAD_ROWS = (duckdb.DataError, duckdb.IntegrityError, duckdb.ProgrammingError, pa.ArrowInvalid)


class Overloaded(Exception):
    """More is queued than the collector may hold; the producer keeps its segment."""


class Unavailable(Exception):
    """The store cannot be written now (disk full, file invalidated); the producer keeps its segment."""


class Rejected(Exception):
    """These rows can never be stored."""


@dataclass(slots=True)
class _Waiting:
    entry: Entry
    size: int
    done: Future[bool] = field(default_factory=Future)


class Writer:
    """Owns the connection and the ledger. `submit` may be called from any thread."""

    def __init__(self, path: Path, patience: float = 10.0) -> None:
        self.path = path
        self.rows = 0
        self.commits = 0
        self.cpu_ns = 0
        self._connection: duckdb.DuckDBPyConnection | None = connect(path, patience=patience)
        self.ledger: Ledger = read_ledger(self._connection)
        lock_down(self._connection)
        self._queue: queue.Queue[_Waiting | None] = queue.Queue()
        self._queued = 0
        self._lock = threading.Lock()
        self._dirty = False
        self._committed = 0.0
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """For readers, who take cursors of it. Raises Unavailable."""
        if self._connection is None:
            raise Unavailable("the store is being reopened")
        return self._connection

    def submit(self, entry: Entry) -> Future[bool]:
        """Queues rows. The future is True when they are on disk, False when they were there already. Raises Overloaded, Unavailable."""
        if self._connection is None:
            raise Unavailable("the store is being reopened")
        size = entry.size
        with self._lock:
            if self._queued + size > MOST_QUEUED and self._queued:
                raise Overloaded
            self._queued += size
        waiting = _Waiting(entry, size)
        self._queue.put(waiting)
        return waiting.done

    def add(self, rows: Rows) -> None:
        """Rows of the collector itself; not waited for."""
        if self._connection is not None and rows.tables:
            self.submit(Entry(None, rows.tables))

    def close(self) -> None:
        """Commits what is queued, checkpoints, and lets go of the file."""
        self._queue.put(None)
        self._thread.join()
        if self._connection is not None:
            try:
                self._connection.execute("CHECKPOINT")
            except duckdb.Error as error:
                logger.warning("no checkpoint at the end: {}", error)
            self._connection.close()
            self._connection = None

    def _run(self) -> None:
        while True:
            try:
                first = self._queue.get(timeout=_IDLE if self._connection is not None else _REOPEN)
            except queue.Empty:
                self._idle()
                continue
            group, last = ([], True) if first is None else self._gather(first)
            if group:
                self._settle(group)
                self.cpu_ns = time.thread_time_ns()
            if last:
                return

    def _gather(self, first: _Waiting) -> tuple[list[_Waiting], bool]:
        """Everything queued, and what comes in the time the group may wait."""
        group, rows, size, patient = [first], first.entry.rows, first.size, first.entry.patient
        soon = time.monotonic() + _GATHER
        while size < _GROUP_BYTES:
            until = 0.0 if rows >= _LARGE else max(soon, self._committed + _SPACING) if patient and rows < _SMALL else soon
            try:
                item = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if item is None:
                return group, True
            group.append(item)
            rows += item.entry.rows
            size += item.size
            patient = patient and item.entry.patient
        return group, False

    def _settle(self, group: list[_Waiting]) -> None:
        fresh: dict[tuple[str, str, int], _Waiting] = {}
        new: list[_Waiting] = []
        again: list[_Waiting] = []
        for waiting in group:
            key = waiting.entry.key
            if key is None or (key not in self.ledger and key not in fresh):
                new.append(waiting)
                if key is not None:
                    fresh[key] = waiting
            else:
                again.append(waiting)
        if new:
            self._commit(new)
        for waiting in again:
            key = waiting.entry.key
            original = fresh.get(key) if key is not None else None
            failed = original.done.exception() if original is not None else None
            self._answer(waiting, False if failed is None else failed)

    def _commit(self, group: list[_Waiting]) -> None:
        """One transaction for all; if some rows are bad, one for each, so that the good ones do not suffer."""
        if self._connection is None:
            self._reopen()
        if self._connection is None:
            for waiting in group:
                self._answer(waiting, Unavailable("the store is being reopened"))
            return
        try:
            write(self._connection, [waiting.entry for waiting in group])
        except _BAD_ROWS as error:
            if len(group) > 1:
                for waiting in group:
                    self._commit([waiting])
            else:
                self._repair(group[0], error)
            return
        except (duckdb.Error, MemoryError) as error:
            self._fail(group, error)
            return
        self._entered(group)

    def _repair(self, waiting: _Waiting, error: Exception) -> None:
        assert self._connection is not None
        try:
            fixed = Entry(waiting.entry.key, repaired(waiting.entry.tables))
            write(self._connection, [fixed])
        except _BAD_ROWS:
            if not self._sound():
                self._fail([waiting], error)
                return
            logger.error("a segment of {} was refused: {}", waiting.entry.key, error)
            self._answer(waiting, Rejected(str(error)))
            return
        except (duckdb.Error, MemoryError) as worse:
            self._fail([waiting], worse)
            return
        self._entered([waiting])

    def _sound(self) -> bool:
        """Whether the store itself still takes a transaction, so that an error was the rows' own."""
        try:
            assert self._connection is not None
            write(self._connection, [])
        except duckdb.Error:
            return False
        return True

    def _entered(self, group: list[_Waiting]) -> None:
        self._dirty = True
        self._committed = time.monotonic()
        self.commits += 1
        gaps = []
        for waiting in group:
            key = waiting.entry.key
            gap = self.ledger.add(*key) if key is not None else None
            if gap is not None and key is not None:
                gaps.append((key, gap))
            self.rows += waiting.entry.rows
            self._answer(waiting, True)
        if gaps:
            self._report(gaps)

    def _report(self, gaps: list[tuple[tuple[str, str, int], tuple[int, int]]]) -> None:
        """A gap is said where people look: in the log and as an event. View `loss` counts it for as long as it is there."""
        for (producer, boot, _), (first, last) in gaps:
            logger.warning("segments {} to {} of {} (boot {}) are missing", first, last, producer, boot)
        now = time.time_ns()
        events = [
            (now, 0, producer, None, "gap", msgspec.json.encode({"boot": boot, "first": first, "last": last}).decode())
            for (producer, boot, _), (first, last) in gaps
        ]
        self.add(Rows({EVENT.name: arrow_rows(EVENT, events)}))

    def _fail(self, group: list[_Waiting], error: Exception) -> None:
        """Disk full and the like. The connection may be beyond use; a new one finds everything that was acknowledged."""
        logger.error("the store cannot be written: {}", error)
        for waiting in group:
            self._answer(waiting, Unavailable(str(error)))
        self._drop_connection()
        time.sleep(_REOPEN / 4)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            rollback(connection)
            try:
                connection.close()
            except duckdb.Error as error:
                logger.warning("closing the store: {}", error)

    def _reopen(self) -> None:
        try:
            connection = connect(self.path)
            self.ledger = read_ledger(connection)
            lock_down(connection)
        except (duckdb.Error, OSError) as error:
            logger.error("the store cannot be reopened yet: {}", error)
            return
        self._connection = connection
        logger.info("the store is open again")

    def _idle(self) -> None:
        if self._connection is None:
            self._reopen()
        elif self._dirty:
            try:
                self._connection.execute("CHECKPOINT")
                self._dirty = False
            except duckdb.TransactionException:
                return
            except duckdb.Error as error:
                self._fail([], error)

    def _answer(self, waiting: _Waiting, outcome: bool | BaseException) -> None:
        with self._lock:
            self._queued -= waiting.size
        if isinstance(outcome, bool):
            waiting.done.set_result(outcome)
        else:
            waiting.done.set_exception(outcome)

