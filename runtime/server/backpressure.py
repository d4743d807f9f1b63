"""The bound on requests inside the server: what is above it is answered 429 with a time after which trying again makes sense."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from probes.recorder import Recording
from runtime.server.errors import ApiError

REMEMBERED = 32  # departures from which the pace is taken
SHORTEST, LONGEST = 1, 60  # seconds a client is told to wait
EVERY_NS = 1_000_000_000  # at most one event so often: under overload there may be thousands of refusals a second


@dataclass(slots=True)
class Backpressure:
    """`inside` requests are in the server, from their first byte to their last, those still being tokenized too."""

    limit: int
    recorder: Recording
    clock: Callable[[], int] = time.monotonic_ns
    inside: int = 0
    refused: int = 0  # so far
    _left: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _told: int | None = None  # when the last event was written
    _untold: int = 0

    def enter(self) -> None:
        """ApiError 429 when the server is full."""
        if self.inside >= self.limit:
            raise self._refusal()
        self.inside += 1

    def leave(self) -> None:
        self.inside -= 1
        self._left.append(self.clock())
        self._tell()

    def wait_seconds(self) -> int:
        """Until one of those inside is likely to have left, at the pace of the last ones."""
        if len(self._left) < 2:
            return SHORTEST
        pace = (self.clock() - self._left[0]) / len(self._left)
        return min(max(math.ceil(pace / 1e9), SHORTEST), LONGEST)

    def _refusal(self) -> ApiError:
        self.refused += 1
        self._untold += 1
        self._tell()
        message = f"{self.inside} requests are in the server already; the limit is {self.limit} (max_queue)"
        return ApiError(429, message, kind="rate_limit_error", code="queue_full", retry_after=self.wait_seconds())

    def _tell(self) -> None:
        now = self.clock()
        if self._untold and (self._told is None or now - self._told >= EVERY_NS):
            self.recorder.event("refusal", requests=self._untold, limit=self.limit, retry_after=self.wait_seconds())
            self._told, self._untold = now, 0
