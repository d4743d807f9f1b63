"""Pauses of Python's garbage collector: a rank that collects makes every other rank wait for it."""

from __future__ import annotations

import gc
import time
from collections import deque
from dataclasses import dataclass

from probes.sampler import Sampler
from probes.sink import Sink
from traces import schema

LEAST_NS = 200_000  # shorter ones are below the noise of a step (a decode step takes milliseconds): summed, not listed
KEPT = 10_000  # pauses kept between two drains


@dataclass(frozen=True, slots=True)
class Pause:
    """One collection. `objects`: container objects allocated since the collection before it."""

    ts: int
    dur: int
    generation: int
    collected: int
    uncollectable: int
    objects: int


class GcPauses(Sampler):
    """Records collections as events of kind `gc`, and the short ones as one `gc_short` event a drain.

    The callback must not touch the recorder: a collection can start anywhere, also while this thread holds the recorder's lock.
    It appends to a deque; the sampler's thread writes the rows.
    """

    def __init__(self, recorder: Sink, rank: int | None = None, interval: float = 1.0, least_ns: int = LEAST_NS) -> None:
        super().__init__("gc", interval)
        self._recorder = recorder
        self._rank = rank
        self._least = least_ns
        self._pauses: deque[Pause] = deque(maxlen=KEPT)
        self._short_count = 0
        self._short_sum = 0
        self._short_seen = (0, 0)
        self._started = (0, 0, 0)

    def start(self) -> GcPauses:
        gc.callbacks.append(self._on_gc)
        super().start()
        return self

    def stop(self) -> None:
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)
        super().stop()

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started = (time.time_ns(), time.perf_counter_ns(), gc.get_count()[0])
            return
        ts, since, objects = self._started
        dur = time.perf_counter_ns() - since
        if dur >= self._least:
            self._pauses.append(Pause(ts, dur, info["generation"], info["collected"], info["uncollectable"], objects))
        else:
            self._short_count += 1
            self._short_sum += dur

    def sample(self) -> None:
        """Write what has been gathered since the last time."""
        while self._pauses:
            pause = self._pauses.popleft()
            attrs = {
                "generation": pause.generation,
                "collected": pause.collected,
                "uncollectable": pause.uncollectable,
                "objects": pause.objects,
            }
            self._recorder.row(schema.EVENT, ts=pause.ts, dur=pause.dur, rank=self._rank, kind="gc", attrs=attrs)
        count, total = self._short_count, self._short_sum
        seen_count, seen_total = self._short_seen
        if count > seen_count:
            self._short_seen = (count, total)
            attrs = {"pauses": count - seen_count}
            self._recorder.row(schema.EVENT, ts=time.time_ns(), dur=total - seen_total, rank=self._rank, kind="gc_short", attrs=attrs)
