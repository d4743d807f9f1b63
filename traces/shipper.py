"""The flusher thread of a producer: ring -> segment in the spool -> collector.

All producers of a host flush on the same ticks of the wall clock: ranks in lockstep then lose their few hundred microseconds together
instead of one after the other, and the collector commits their segments in one transaction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from loguru import logger

from traces.address import CollectorAddress
from traces.records import pack_row
from traces.ring import Ring
from traces.schema import BY_NUMBER, CLOCK_OFFSET, DROP
from traces.segment import build, describe
from traces.sender import Sender
from traces.spool import QuotaExceeded, Spool, Spooled
from traces.walk import only

INTERVAL = 0.5
_OWN = (DROP.number, CLOCK_OFFSET.number)
_KEEP = {number for number, table in BY_NUMBER.items() if not table.detail}
Drops = dict[tuple[str, str], int]


class Shipper:
    """Owns a ring and a spool. `locate` says where the collector is now, or None: segments then wait in the spool.

    `tables` are the numbers of those that have a writer; they grow while it runs.
    """

    def __init__(
        self,
        ring: Ring,
        spool: Spool,
        producer: str,
        locate: Callable[[], CollectorAddress | None],
        tables: Collection[int],
        interval: float = INTERVAL,
    ) -> None:
        self.ring, self.spool, self.producer, self.interval = ring, spool, producer, interval
        self.cpu_ns = 0
        self._locate, self._tables = locate, tables
        self._sender = Sender(ring, spool, locate, interval)
        self._described: tuple[int, bytes] = (-1, b"")
        self._seq = 0
        # A segment no disk has room for: kept in memory, its records kept in the ring, until the collector has it.
        self._held: tuple[Spooled, int] | None = None
        self._wake, self._stop = threading.Event(), False
        self._done = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"shipper-{producer}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def flush(self, timeout: float) -> bool:
        """True when everything recorded before the call is acknowledged. False at once when it is spooled and there is no collector."""
        deadline, target = time.monotonic() + timeout, self.ring.head
        with self._done:
            while not self._settled(target):
                self._sender.hurry()
                self._wake.set()
                spooled = self.ring.tail >= target
                if time.monotonic() >= deadline or not self._thread.is_alive() or (spooled and self._locate() is None):
                    return False
                self._done.wait(min(0.05, max(0.0, deadline - time.monotonic())))
        return True

    def stop(self, timeout: float) -> bool:
        """Sends what is left, as far as a collector answers, and ends the thread. False when something stays in the spool or ring."""
        target = self.ring.head
        if self._thread.is_alive():
            if self._locate() is not None:
                self.flush(timeout)
            self._stop = True
            self._wake.set()
            self._thread.join(timeout + 6)
        return self._settled(target)

    def _settled(self, target: int) -> bool:
        return self.ring.tail >= target and not self.spool.pending and not self.ring.drops

    def _run(self) -> None:
        while not self._stop:
            self._wake.wait(self._next_tick())
            self._wake.clear()
            self.tick()
        self.tick()
        self._sender.close()

    def _next_tick(self) -> float:
        return self.interval - time.time() % self.interval

    def tick(self) -> None:
        """One round. Called by the thread."""
        self._drain()
        self._sender.send(time.monotonic() + self._next_tick())
        self.cpu_ns = time.thread_time_ns()
        with self._done:
            self._done.notify_all()

    def _drain(self) -> None:
        """Ring -> one segment in the spool."""
        if self._held is not None:
            self._retry()
            return
        drops = self.ring.take_drops()
        records, end = self.ring.take()
        if not records and not drops:
            return
        for message in self.ring.take_errors():
            logger.warning("recorder {}: a row did not fit its table: {}", self.producer, message)
        segment = self._segment(records + self._drop_rows(drops))
        self.ring.announce(self._seq, end)
        try:
            self.spool.write(self._seq, segment)
        except QuotaExceeded:
            self._reduce(records, end, drops)
        except OSError as error:
            logger.warning("recorder {}: cannot spool: {}", self.producer, error)
            # From now on these bytes are segment `seq`: they may reach the collector even if its answer does not come back.
            self._held = self.spool.hold(self._seq, segment), end
        else:
            self._advance(end)

    def _retry(self) -> None:
        """A held segment goes to disk as soon as there is room, on its way to the collector or not."""
        assert self._held is not None
        file, end = self._held
        if file in self.spool.pending:
            try:
                self.spool.unhold(file)
            except (QuotaExceeded, OSError):
                return
        self._advance(end)

    def _advance(self, end: int) -> None:
        self._held = None
        self._seq += 1
        self.ring.release(end, self._seq)

    def _reduce(self, records: bytes, end: int, drops: Drops) -> None:
        """Quota: detail rows go first; if the rest does not fit either, all rows go. Both are counted, and the count is sent next."""
        for (table, reason), rows in drops.items():
            self.ring.drop(table, reason, rows)
        kept, lost = only(records, _KEEP)
        try:
            if not kept:
                raise QuotaExceeded
            self.spool.write(self._seq, self._segment(kept))
            self._seq += 1
        except (QuotaExceeded, OSError):
            lost = only(records, set())[1]
        for number, rows in lost.items():
            self.ring.drop(BY_NUMBER[number].name, "quota", rows)
        self.ring.release(end, self._seq)

    def _segment(self, records: bytes) -> bytes:
        if self._described[0] != len(self._tables):
            self._described = len(self._tables), describe(BY_NUMBER[number] for number in sorted({*_OWN, *self._tables}))
        return build(self.producer, self.spool.boot, self._seq, time.time_ns(), self._described[1], records)

    def _drop_rows(self, drops: Drops) -> bytes:
        now = time.time_ns()
        return b"".join(pack_row(DROP, (now, self.producer, table, rows, reason)) for (table, reason), rows in drops.items())
