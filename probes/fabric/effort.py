"""How much of a stretch of time this process was on a CPU, or waited for one; and the TCP segments of its host."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from probes.procfile import read_text


@dataclass(frozen=True, slots=True)
class Effort:
    """A moment. ns: of the clock, of all threads on a CPU, and of each thread waiting for one. Waiting is kept apart: a loaded host makes
    whoever is woken wait, also where a wire decides.
    """

    clock: int
    spent: int
    waited: dict[str, int]  # by thread

    @classmethod
    def now(cls) -> Effort:
        """/proc/PID/task/*/schedstat has ns on a CPU, then ns in a run queue (Documentation/scheduler/sched-stats.rst)."""
        spent, waited = 0, {}
        for task in Path("/proc/self/task").iterdir():
            words = (read_text(task / "schedstat") or "").split()
            if len(words) >= 2:
                spent += int(words[0])
                waited[task.name] = int(words[1])
        return cls(time.perf_counter_ns(), spent, waited)

    def since(self) -> tuple[float, float]:
        """Shares of the time since, 0..1: on a CPU (high where one decides how fast things go, near zero where a wire does), and in which
        the thread that waited longest was ready and had none.
        """
        now = Effort.now()
        length = max(1, now.clock - self.clock)
        longest = max((waited - self.waited.get(task, 0) for task, waited in now.waited.items()), default=0)
        return _share((now.spent - self.spent) / length), _share(longest / length)


def _share(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 3)


def segments(snmp: str | None) -> tuple[int, int]:
    """TCP segments sent and sent again, of this network namespace (/proc/net/snmp: a line of names, a line of numbers)."""
    lines = [line.split() for line in (snmp or "").splitlines() if line.startswith("Tcp:")]
    if len(lines) < 2:
        return 0, 0
    found = dict(zip(lines[0], lines[1], strict=True))
    return int(found["OutSegs"]), int(found["RetransSegs"])
