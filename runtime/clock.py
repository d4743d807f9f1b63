"""The one seam between a step and time.

On the host a mark is `time.time_ns()`: comparable across the ranks of one host. On an asynchronous device a mark is a device event,
because the host clock would measure launches; events are turned into times later, outside the step, without synchronising it.
The device clock has not been run on a device yet.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

Write = Callable[[list[int]], None]  # receives the times of the marks, ns since the epoch


class Clock(Protocol):
    """Marks, and delivery of their times."""

    name: str  # host | device: the `clock` column

    def mark(self) -> Any: ...

    def cpu(self) -> int | None:
        """CPU time of this thread, ns; None where it says nothing about the work."""
        ...

    def deliver(self, marks: list[Any], write: Write) -> None:
        """Calls `write` with the times of the marks, now or once they are known."""
        ...

    def drain(self) -> None:
        """Delivers what is known by now. Never waits."""
        ...


class HostClock:
    """Marks are times; everything is delivered at once."""

    name = "host"
    mark = staticmethod(time.time_ns)
    cpu = staticmethod(time.thread_time_ns)

    def deliver(self, marks: list[Any], write: Write) -> None:
        write(marks)

    def drain(self) -> None:
        pass


class DeviceClock:
    """Marks are device events. Host time of an event = host time of an anchor + elapsed device time since the anchor.

    The anchor moves to the last event delivered: `elapsed_time` is a float of milliseconds and loses resolution over hours.
    """

    name = "device"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waiting: deque[tuple[list[Any], Write]] = deque()
        torch.accelerator.synchronize(device)
        self._anchor = self.mark()
        torch.accelerator.synchronize(device)
        self._anchor_ns = time.time_ns()

    def mark(self) -> Any:
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def cpu(self) -> int | None:
        return None

    def deliver(self, marks: list[Any], write: Write) -> None:
        self._waiting.append((marks, write))

    def drain(self) -> None:
        while self._waiting and self._waiting[0][0][-1].query():
            marks, write = self._waiting.popleft()
            write([self._anchor_ns + int(self._anchor.elapsed_time(mark) * 1e6) for mark in marks])
            self._anchor_ns += int(self._anchor.elapsed_time(marks[-1]) * 1e6)
            self._anchor = marks[-1]


def clock_for(device: torch.device) -> Clock:
    """The clock of a device: the host's for the CPU, the device's own otherwise."""
    return HostClock() if device.type == "cpu" else DeviceClock(device)
