"""What the tiers of a rank cost: one event `expert_tier` a second while there are steps."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass

from runtime.step_rows import RowSink
from traces import schema

WINDOW_NS = 1_000_000_000


@dataclass(slots=True)
class Counts:
    """Of one window. `stall_ns`: the step waited for an expert; `fetch_ns`: experts were on their way, waited for or not."""

    needed: int = 0  # experts that steps computed with, each step and layer anew
    misses: int = 0  # of them, those that were not in memory when their layer began
    miss_bytes: int = 0  # bytes read from files for any reason
    stall_ns: int = 0
    fetch_ns: int = 0
    prefetched: int = 0  # brought in before their layer began
    prefetch_used: int = 0  # of those, needed by the layer they were meant for
    promoted: int = 0
    demoted: int = 0


class TierAccount:
    """Belongs to the step loop; `fetched` is called by the reading thread."""

    def __init__(self, recorder: RowSink | None, rank: int, frames: int, experts: int, frame_bytes: int) -> None:
        self.total = Counts()
        self.now = Counts()
        self._recorder, self._rank = recorder, rank
        self._fixed = {"frames": frames, "experts": experts, "frame_bytes": frame_bytes}
        self._lock = threading.Lock()
        self._since = time.time_ns()
        self._first: int | None = None
        self._last = 0

    def fetched(self, nbytes: int, ns: int) -> None:
        with self._lock:
            self.now.miss_bytes += nbytes
            self.now.fetch_ns += ns
            self.now.promoted += 1

    def step(self, step: int, resident: int, demoted: int) -> None:
        """A step has ended; `demoted` so far."""
        self._first = step if self._first is None else self._first
        self._last = step
        self.now.demoted = demoted - self.total.demoted
        if time.time_ns() - self._since >= WINDOW_NS:
            self.flush(resident)

    def flush(self, resident: int) -> None:
        """Writes the window. `hidden`: share of the reading that no step waited for; null when nothing was read."""
        with self._lock:
            done, self.now = self.now, Counts()
        for name, value in asdict(done).items():
            setattr(self.total, name, getattr(self.total, name) + value)
        begin, self._since = self._since, time.time_ns()
        if self._recorder is None or self._first is None:
            return
        hidden = max(0.0, 1 - done.stall_ns / done.fetch_ns) if done.fetch_ns else None
        attrs = {**asdict(done), "hidden": hidden, "resident": resident, "step_first": self._first, "step_last": self._last, **self._fixed}
        self._first = None
        self._recorder.row(schema.EVENT, ts=begin, dur=self._since - begin, rank=self._rank, kind="expert_tier", attrs=attrs)
