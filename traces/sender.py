"""Spool -> collector: one body of pending segments in flight, acknowledged when the collector has committed it."""

from __future__ import annotations

import time
from collections.abc import Callable

from traces.address import CollectorAddress
from traces.clock import ClockOffset
from traces.post import Poster, Reply
from traces.ring import Ring
from traces.spool import Spool, Spooled

BODY_BYTES = 2 << 20
_SLOWEST = 4.0


class Sender:
    """Used by the flusher thread alone. `locate` says where the collector is now, or None."""

    def __init__(self, ring: Ring, spool: Spool, locate: Callable[[], CollectorAddress | None], pause: float) -> None:
        self._ring, self._spool, self._locate = ring, spool, locate
        self._poster: Poster | None = None
        self._flying: list[Spooled] = []
        self._singly = False
        self._first_pause = self._pause = pause
        self._not_before = 0.0
        self._hurried = False
        self._clock = ClockOffset()

    def hurry(self) -> None:
        """Somebody waits: no pause after a failure, and the collector is asked to commit at once."""
        self._not_before = 0.0
        self._hurried = True

    def send(self, until: float) -> None:
        """Sends pending segments, oldest first, and waits for answers until a time.monotonic()."""
        while True:
            if self._flying:
                assert self._poster is not None
                if not self._poster.ready(until - time.monotonic()):
                    return
                self._landed(self._poster.receive())
            elif self._spool.pending and self._reachable():
                self._start()
            else:
                return

    def close(self) -> None:
        if self._poster is not None:
            self._poster.close()
            self._poster = None

    def _start(self) -> None:
        files: list[Spooled] = []
        parts: list[bytes] = []
        size = 0
        for file in list(self._spool.pending):
            if files and (self._singly or size + file.size > BODY_BYTES):
                break
            try:
                parts.append(file.read())
            except OSError:
                # Somebody removed it; the ledger will show the gap.
                self._spool.forget(file)
                continue
            files.append(file)
            size += file.size
        if files and self._poster is not None:
            self._flying = files
            self._poster.send(b"".join(parts), patient=not self._hurried)
            self._hurried = False

    def _landed(self, reply: Reply) -> None:
        files, self._flying = self._flying, []
        if reply.status == 200 and reply.answer is not None:
            self._pause, self._singly = self._first_pause, False
            self._acknowledge(files, reply.answer.rejected)
            row = self._clock.observe(reply)
            if row is not None:
                self._ring.write(row)
        elif reply.refused and len(files) > 1:
            self._singly = True
        elif reply.refused:
            self._acknowledge(files, [0])
        else:
            # A restarted collector has another port and token.
            self.close()
            self._not_before = time.monotonic() + max(self._pause, reply.retry_after)
            self._pause = min(_SLOWEST, self._pause * 2)

    def _acknowledge(self, files: list[Spooled], rejected: list[int]) -> None:
        """Segments the collector can never read are set aside and counted, so that they do not block the rest."""
        for index, file in enumerate(files):
            self._spool.acknowledge(file)
            if index in rejected:
                self._ring.drop("*", "rejected")

    def _reachable(self) -> bool:
        if time.monotonic() < self._not_before:
            return False
        if self._poster is None:
            address = self._locate()
            self._poster = None if address is None else Poster(address)
        return self._poster is not None
