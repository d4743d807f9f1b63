"""Offset of this host's clock to the collector's, from the four times of each POST (as in NTP, RFC 5905 section 8)."""

from __future__ import annotations

import socket

from traces.post import Reply
from traces.records import pack_row
from traces.schema import CLOCK_OFFSET

WINDOW_NS = 30_000_000_000


class ClockOffset:
    """Keeps the exchange with the shortest round trip of every 30 s."""

    def __init__(self) -> None:
        self._since = 0
        self._best: tuple[int, int] | None = None

    def observe(self, reply: Reply) -> bytes | None:
        """A packed clock_offset row when a window has ended, else None."""
        if reply.answer is None or not reply.answer.received:
            return None
        there, back = reply.answer.received, reply.answer.answered
        offset = ((reply.sent - there) + (reply.got - back)) // 2
        error = max(0, (reply.got - reply.sent) - (back - there)) // 2 + 1
        if self._best is None or error < self._best[0]:
            self._best = error, offset
        if not self._since:
            self._since = reply.sent
        if reply.got - self._since < WINDOW_NS:
            return None
        error, offset = self._best
        self._since, self._best = reply.got, None
        return pack_row(CLOCK_OFFSET, (reply.got, socket.gethostname(), offset, error))
