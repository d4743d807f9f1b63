"""When a step began and when each of its micro-batches ended, in wall and CPU time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class StepMarks:
    """(epoch ns, CPU ns of this thread). The first is the step's beginning, each further one the end of a micro-batch."""

    points: list[tuple[int, int]] = field(default_factory=lambda: [(time.time_ns(), time.thread_time_ns())])
    sync: int = 0  # ns in the header

    @property
    def begin(self) -> int:
        return self.points[0][0]

    def mark(self, at: int | None = None) -> None:
        self.points.append((time.time_ns() if at is None else at, time.thread_time_ns()))
