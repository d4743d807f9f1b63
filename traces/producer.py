"""The recorder: how a process of a run says what happens in it."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from loguru import logger

from traces.records import record_writer
from traces.ring import Ring
from traces.run import Run
from traces.schema import BY_NUMBER, EVENT, RESOURCE
from traces.segment import describe
from traces.shipper import INTERVAL, Shipper
from traces.spool import QUOTA, Spool
from traces.table import Table

Writer = Callable[..., None]
_open: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Recording(Protocol):
    """What instrumented code needs of a recorder; Recorder and NullRecorder both have it."""

    resource_id: str

    def writer(self, table: Table) -> Writer: ...
    def row(self, table: Table, **values: Any) -> None: ...
    def event(self, kind: str, *, dur: int = 0, rank: int | None = None, **attrs: Any) -> None: ...
    def register(
        self, role: str, device: str = "cpu", rank: int | None = None, tp: int | None = None, pp: int | None = None,
        dp: int | None = None, ep: int | None = None, **attrs: Any,
    ) -> None: ...  # fmt: skip
    def flush(self, timeout: float = 5.0) -> bool: ...
    def close(self) -> None: ...


class Recorder:
    """One per process; thread-safe. A full ring, disk or quota drops rows and counts them; the host process never fails for it."""

    def __init__(self, ring: Ring, shipper: Shipper, producer: str, writers: dict[int, Writer]) -> None:
        self.resource_id = producer
        self.ring = ring
        self._shipper = shipper
        self._writers = writers
        self._registered: tuple[Any, ...] | None = None
        self._closed = False
        _open.add(self)

    @classmethod
    def open(
        cls, run: Run, producer: str, *, ship: bool = True, ring_bytes: int = 16 << 20, interval: float = INTERVAL, quota: int = QUOTA
    ) -> Recorder:
        """Starts recording as `producer`. Every call is a new boot: its own ring and its own numbering. Raises NotWritable, ValueError."""
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", producer):
            raise ValueError(f"{producer!r} is not a producer name: letters, digits, '.', '_' and '-'")
        folder = run.folder("spool") / producer
        boot = f"{time.time_ns():016x}{secrets.token_hex(2)}"
        ring = _ring(folder, boot, ring_bytes)
        writers: dict[int, Writer] = {}
        shipper = Shipper(ring, Spool(folder, boot, quota), producer, run.collector if ship else _nowhere, writers, interval)
        shipper.start()
        return cls(ring, shipper, producer, writers)

    @property
    def dropped(self) -> int:
        """Rows lost and not yet reported in table drop."""
        return sum(self.ring.drops.values())

    @property
    def cpu_ns(self) -> int:
        """CPU time of the flusher thread so far."""
        return self._shipper.cpu_ns

    def writer(self, table: Table) -> Writer:
        """The hot path: a function of the table's columns, positional, in order. Bad values are counted, never raised."""
        known = self._writers.get(table.number)
        if known is None:
            known = self._writers[table.number] = record_writer(self.ring, table)
        return known

    def row(self, table: Table, **values: Any) -> None:
        """One row by name. ts defaults to now, resource_id to this producer, json to {}, missing nullable columns to null.

        Raises TypeError for an unknown column or a missing one that cannot be null.
        """
        given = []
        for column in table.columns:
            if column.name in values:
                given.append(values.pop(column.name))
            elif column.name == "ts":
                given.append(time.time_ns())
            elif column.name == "resource_id":
                given.append(self.resource_id)
            elif column.nullable or column.base == "json":
                given.append(None)
            else:
                raise TypeError(f"{table.name}.{column.name} is missing")
        if values:
            raise TypeError(f"{table.name} has no column {', '.join(values)}")
        self.writer(table)(*given)

    def event(self, kind: str, *, dur: int = 0, rank: int | None = None, **attrs: Any) -> None:
        """Something happened, `dur` ns long and ending now."""
        self.writer(EVENT)(time.time_ns() - dur, dur, self.resource_id, rank, kind, attrs)

    def register(
        self, role: str, device: str = "cpu", rank: int | None = None, tp: int | None = None, pp: int | None = None,
        dp: int | None = None, ep: int | None = None, **attrs: Any,
    ) -> None:  # fmt: skip
        """Writes this producer's resource row; again only when something in it changed."""
        place = (rank, tp, pp, dp, ep)
        if self._registered == (role, device, place, attrs):
            return
        self._registered = (role, device, place, attrs)
        self.writer(RESOURCE)(self.resource_id, time.time_ns(), socket.gethostname(), *place, os.getpid(), role, device, attrs)

    def flush(self, timeout: float = 5.0) -> bool:
        """True when all rows written before the call are acknowledged by the collector."""
        return not self._closed and self._shipper.flush(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Ships or at least spools everything, and stops. Further rows are dropped."""
        if self._closed:
            return
        self._closed = True
        _open.discard(self)
        self._shipper.stop(timeout)
        self.ring.disable()
        self.ring.close(remove=self.ring.used == 0)

    def _abandon(self) -> None:
        """In a forked child: the recorder belongs to the parent."""
        self._closed = True
        self.ring.abandon()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class NullRecorder:
    """The same surface with nothing behind it, for telemetry off."""

    resource_id = ""
    dropped = 0
    cpu_ns = 0

    def writer(self, table: Table) -> Writer:
        return _nothing

    def row(self, table: Table, **values: Any) -> None:
        return None

    def event(self, kind: str, *, dur: int = 0, rank: int | None = None, **attrs: Any) -> None:
        return None

    def register(
        self, role: str, device: str = "cpu", rank: int | None = None, tp: int | None = None, pp: int | None = None,
        dp: int | None = None, ep: int | None = None, **attrs: Any,
    ) -> None:  # fmt: skip
        return None

    def flush(self, timeout: float = 5.0) -> bool:
        return True

    def close(self) -> None:
        return None

    def __enter__(self) -> NullRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def _ring(folder: Any, boot: str, size: int) -> Ring:
    """A ring in the spool folder, or in plain memory when the disk has no room for one."""
    meta = describe(BY_NUMBER.values())
    try:
        folder.mkdir(exist_ok=True)
        return Ring(folder / f"{boot}.ring", size, meta)
    except OSError as error:
        logger.warning("recorder: no crash-safe ring in {}: {}; rows of the last moments are lost if this process is killed", folder, error)
        return Ring(None, size, meta)


def _nowhere() -> None:
    return None


def _nothing(*values: Any) -> None:
    return None


def _close_all() -> None:
    for recorder in list(_open):
        recorder.close()


def _abandon_all() -> None:
    for recorder in list(_open):
        recorder._abandon()
    _open.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_abandon_all)
