"""The clock marks of one layer in a detailed step: contiguous segments, one row of `layer`."""

from __future__ import annotations

from typing import Any

from runtime.batch import StepContext
from runtime.clock import Clock


class LayerTimes:
    """Marks are taken in order: start, then the ends of attention, router, exchange, dispatch, experts and combine.

    A dense layer has empty router, exchange and dispatch segments, and its feed-forward is the expert segment. The shared expert is
    computed inside the dispatch and combine segments; its own time is kept beside them.
    """

    __slots__ = ("active", "attention_cpu", "clock", "experts_cpu", "marks", "rows", "shared")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.marks: list[Any] = [clock.mark()]
        self.attention_cpu = clock.cpu()  # CPU time at the start of the segment, then the segment's
        self.experts_cpu: int | None = None
        self.rows = 0  # rows computed by this rank's experts
        self.active = 0  # local slots with at least one row
        self.shared: list[Any] = []  # begin and end of each part of the shared expert

    def mark(self) -> None:
        self.marks.append(self.clock.mark())

    def attention_done(self) -> None:
        now = self.clock.cpu()
        self.attention_cpu = None if now is None or self.attention_cpu is None else now - self.attention_cpu
        self.mark()

    def experts_begin(self) -> None:
        """The end of the dispatch segment."""
        self.mark()
        self.experts_cpu = self.clock.cpu()

    def experts_done(self) -> None:
        now = self.clock.cpu()
        self.experts_cpu = None if now is None or self.experts_cpu is None else now - self.experts_cpu
        self.mark()

    def shared_begin(self) -> None:
        self.shared.append(self.clock.mark())

    shared_done = shared_begin

    def dense_begin(self) -> None:
        self.marks += [self.marks[-1]] * 3
        self.experts_cpu = self.clock.cpu()

    def write(self, step: StepContext, layer: int, tokens: int) -> None:
        """Delivers the row of table `layer`."""
        if step.writers is None:
            return
        writer, name = step.writers.layer, self.clock.name
        head = (step.step, step.rank, step.stage, step.micro_batch, layer)
        tail = (self.attention_cpu, self.experts_cpu, tokens, self.rows, self.active, name)

        count = len(self.shared)

        def deliver(times: list[int]) -> None:
            parts, t = times[:count], times[count:]
            shared = sum(parts[1::2]) - sum(parts[::2]) if parts else None
            writer(*head, t[0], t[1] - t[0], t[2] - t[1], t[3] - t[2], t[4] - t[3], t[5] - t[4], t[6] - t[5], *tail, shared)

        self.clock.deliver([*self.shared, *self.marks], deliver)  # the last mark is the latest
