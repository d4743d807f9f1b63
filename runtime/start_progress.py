"""What a person who waits for the server sees on stderr: bars on a terminal, a line per phase otherwise."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from runtime.messages import Progress

BAR = 16
MOST_BARS = 8  # of a large world only the slowest are drawn
QUIET_SECONDS = 2.0  # between two lines about loading, where there are no bars
WORDS = {
    "start": "starting",
    "plan": "reading headers",
    "load": "loading weights",
    "kv_cache": "allocating the KV cache",
    "warmup": "warming up",
    "serve": "ready",
}
ORDER = {phase: number for number, phase in enumerate(WORDS)}


class StartProgress:
    """Fed with what the ranks tell; `begin` says what is started."""

    def __init__(self, ranks: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._tty = self._stream.isatty()
        self._ranks = ranks
        self._latest: dict[int, Progress] = {}
        self._loading: dict[int, Progress] = {}  # the last that each rank told of its loading
        self._drawn = 0
        self._said = "start"
        self._last_line = 0.0

    def begin(self, text: str) -> None:
        self._write(text + "\n")

    def update(self, progress: Progress) -> None:
        self._latest[progress.rank] = progress
        if progress.total:
            self._loading[progress.rank] = progress
        if self._tty:
            self._draw()
        else:
            self._say()

    def _draw(self) -> None:
        """One line per rank, painted over the lines of last time."""
        slowest = sorted(self._latest.values(), key=lambda p: (ORDER.get(p.phase, 0), p.done))[:MOST_BARS]
        lines = [_bar(p) for p in sorted(slowest, key=lambda p: p.rank)]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._write(up + "".join(f"\r\x1b[2K{line}\n" for line in lines))
        self._drawn = len(lines)

    def _say(self) -> None:
        """A line when the slowest rank enters a phase, and now and then while weights are read."""
        if len(self._latest) < self._ranks:
            return
        phase = min((p.phase for p in self._latest.values()), key=lambda name: ORDER.get(name, 0))
        if phase != self._said:
            if self._said == "load":
                self._write(f"{WORDS['load']}{_bytes(list(self._loading.values()))}\n")
            if phase != "load":
                self._write(f"{WORDS.get(phase, phase)}\n")
            self._said, self._last_line = phase, time.monotonic()
        elif phase == "load" and self._loading and time.monotonic() - self._last_line >= QUIET_SECONDS:
            self._write(f"{WORDS['load']}{_bytes(list(self._loading.values()))}\n")
            self._last_line = time.monotonic()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _bytes(there: list[Progress]) -> str:
    done, total = sum(p.done for p in there), sum(p.total for p in there)
    seconds = max((p.seconds for p in there), default=0.0)
    rate = f", {done / seconds / 1e6:.0f} MB/s" if seconds > 0 else ""
    return f": {done / 1e6:.1f} of {total / 1e6:.1f} MB{rate}"


def _bar(progress: Progress) -> str:
    words = WORDS.get(progress.phase, progress.phase)
    if not progress.total:
        return f"rank {progress.rank}  {words}"
    filled = round(BAR * progress.done / progress.total)
    return f"rank {progress.rank}  {words} [{'#' * filled}{'.' * (BAR - filled)}]{_bytes([progress])[1:]}"
