"""A progress bar on stderr, drawn only on a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Self

WIDTH = 28
REDRAW = 0.1  # seconds between frames: fast enough to look alive, cheap enough not to matter


class Bar:
    """`label ━━━━━━╌╌╌╌ 12/40  3.1 s  note`. Silent when stderr is no terminal or the session is quiet."""

    def __init__(self, label: str, total: int, *, quiet: bool = False) -> None:
        self.label, self.total, self.done, self.note = label, max(total, 1), 0, ""
        self._shown = sys.stderr.isatty() and not quiet
        self._started = time.monotonic()
        self._drawn = 0.0

    def update(self, done: int, note: str = "") -> None:
        self.done, self.note = done, note
        now = time.monotonic()
        if self._shown and (now - self._drawn >= REDRAW or done >= self.total):
            self._drawn = now
            self._draw()

    def _draw(self) -> None:
        full = min(WIDTH, WIDTH * self.done // self.total)
        seconds = time.monotonic() - self._started
        line = f"{self.label} {'━' * full}{'╌' * (WIDTH - full)} {self.done}/{self.total}  {seconds:.1f} s  {self.note}"
        columns = shutil.get_terminal_size().columns
        sys.stderr.write("\r\x1b[K" + line[: columns - 1])
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
