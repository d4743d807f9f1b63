"""Settings and placements that come into force on all ranks at the same step.

The API process sends every change to every rank in one order. A rank counts those it has read and says so in the header; the changes
that all ranks have read are applied before the step that follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from runtime import messages as m

Change = m.Setting | m.SwitchPlacement
Apply = Callable[[Change, int], None]


class Changes:
    """`apply(change, step)` is called once per change; `step` is the first it holds for."""

    def __init__(self, apply: Apply) -> None:
        self.read = 0
        self._applied = 0
        self._waiting: deque[Change] = deque()
        self._apply = apply

    def stage(self, change: Change) -> None:
        self.read += 1
        self._waiting.append(change)

    def agreed(self, count: int, step: int) -> None:
        """All ranks have read the first `count` changes."""
        while self._applied < count:
            self._apply(self._waiting.popleft(), step)
            self._applied += 1


class Detail:
    """Which steps are recorded in full: one in `every` (0: none), and those of a window that was asked for."""

    def __init__(self, every: int) -> None:
        self.every = every
        self._window = range(0)

    def open_window(self, first: int, steps: int) -> None:
        """`first` is the next step; a window that is still open is prolonged."""
        begin = min(first, self._window.start) if first in self._window else first
        self._window = range(begin, max(first + steps, self._window.stop))

    def wanted(self, step: int) -> bool:
        return step in self._window or (self.every > 0 and step % self.every == 0)
