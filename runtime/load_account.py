"""What one load cost: time inside reads, faults, bytes that came through read calls. Said in one event when the last byte has arrived."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import Any

from probes.procfile import read_text
from runtime.shard_file import Pread


class LoadAccount:
    """Started before the first byte. `timed` wraps the read call; about 1 us a call, of reads that take milliseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_ns = 0
        self._reads = 0
        self._placing = False  # whether a value was placed
        self._flying, self._most = 0, 0  # reads in flight now, and at most
        self._began = time.perf_counter_ns()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._chars = _chars()

    def timed(self, pread: Pread) -> Pread:
        def read(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            with self._lock:
                self._flying += 1
                self._most = max(self._most, self._flying)
            began = time.perf_counter_ns()
            try:
                return pread(descriptor, buffers, offset)
            finally:
                spent = time.perf_counter_ns() - began
                with self._lock:
                    self._flying -= 1
                    self._read_ns += spent
                    self._reads += 1

        return read

    def first_placing(self) -> bool:
        """Whether this is the first call."""
        if self._placing:
            return False
        with self._lock:
            first, self._placing = not self._placing, True
        return first

    def attrs(self) -> dict[str, Any]:
        """ns, counts and bytes since the start. `by_calls`: bytes that came through read calls of this process, whoever made them."""
        now = resource.getrusage(resource.RUSAGE_SELF)
        chars = _chars()
        return {
            "wall_ns": time.perf_counter_ns() - self._began,
            "read_ns": self._read_ns,
            "reads": self._reads,
            "most_in_flight": self._most,
            "user_ns": int((now.ru_utime - self._usage.ru_utime) * 1e9),
            "system_ns": int((now.ru_stime - self._usage.ru_stime) * 1e9),
            "minor_faults": now.ru_minflt - self._usage.ru_minflt,
            "major_faults": now.ru_majflt - self._usage.ru_majflt,
            "by_calls": None if chars is None or self._chars is None else chars - self._chars,
            "cpus": len(os.sched_getaffinity(0)),
        }


def _chars() -> int | None:
    """rchar of /proc/self/io (proc(5)): bytes this process has caused to be read by read(2) and its kin, cached or not."""
    for line in (read_text("/proc/self/io") or "").splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    return None
