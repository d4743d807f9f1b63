"""A torch.profiler window over a few steps of a live rank: which operators took the time, written as rows of table `operator`.

All ranks open it at the same step and close it after the same step. Starting and reading the profiler takes tenths of a second, in which
every rank stands still together; the event `profile` says how long.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch.profiler import ProfilerActivity, profile

from probes.recorder import Recording
from traces import schema

NS_PER_US = 1000


@dataclass(slots=True)
class ProfileWindow:
    """Belongs to the step loop. `open` asks for a window, `enter` and `leave` bracket every executed step."""

    recorder: Recording
    rank: int
    device: torch.device
    _steps: range = range(0)
    _profiler: profile | None = None
    _tokens: int = 0
    _stall: int = field(default=0)

    def open(self, first: int, steps: int) -> None:
        """`first` is the next step. A window that is still open goes on to its own end, and the new one is not begun."""
        if self._profiler is None:
            self._steps = range(first, first + steps)

    def enter(self, step: int) -> None:
        if self._profiler is None and step in self._steps:
            began = time.time_ns()
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.device.type == "cuda")
            self._profiler, self._tokens = profile(activities=activities, acc_events=True), 0
            self._profiler.start()
            self._stall = time.time_ns() - began

    def leave(self, step: int, tokens: int) -> None:
        """`tokens` this rank computed in the step."""
        if self._profiler is None:
            return
        self._tokens += tokens
        if step >= self._steps.stop - 1:
            self._close()

    def _close(self) -> None:
        assert self._profiler is not None
        began = time.time_ns()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._profiler.stop()
        write = self.recorder.writer(schema.OPERATOR)
        first, last = self._steps.start, self._steps.stop - 1
        on_device = self.device.type != "cpu"
        for one in self._profiler.key_averages():
            device = int(one.self_device_time_total * NS_PER_US) if on_device else None
            write(
                began, self.rank, first, last, self._tokens, str(one.key), int(one.count),
                int(one.self_cpu_time_total * NS_PER_US), int(one.cpu_time_total * NS_PER_US), device,
            )  # fmt: skip
        self._profiler, self._steps = None, range(0)
        self.recorder.event("profile", dur=self._stall + time.time_ns() - began, rank=self.rank, first=first, last=last)
