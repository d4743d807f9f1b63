"""What stands on stderr while a server starts."""

from __future__ import annotations

import io

from runtime.messages import Progress
from runtime.start_progress import MOST_BARS, StartProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def phases(progress: StartProgress, ranks: int) -> None:
    for phase in ("plan", "load"):
        for rank in range(ranks):
            progress.update(Progress(rank, phase))
    for rank in range(ranks):
        progress.update(Progress(rank, "load", 1_000_000, 4_000_000, 0.5))
        progress.update(Progress(rank, "load", 4_000_000, 4_000_000, 2.0))
        progress.update(Progress(rank, "kv_cache"))
    for phase in ("warmup", "serve"):
        for rank in range(ranks):
            progress.update(Progress(rank, phase))


def test_plain_lines_tell_each_phase_once_and_what_was_read() -> None:
    stream = io.StringIO()
    progress = StartProgress(2, stream)
    progress.begin("2 ranks")
    phases(progress, 2)
    assert stream.getvalue().splitlines() == [
        "2 ranks",
        "reading headers",
        "loading weights: 8.0 of 8.0 MB, 4 MB/s",
        "allocating the KV cache",
        "warming up",
        "ready",
    ]


def test_a_terminal_shows_a_line_per_rank_and_paints_over_it() -> None:
    stream = Terminal()
    phases(StartProgress(2, stream), 2)
    last = stream.getvalue().split("\x1b[2A")[-1]
    assert last.replace("\x1b[2K", "").replace("\r", "").splitlines() == ["rank 0  ready", "rank 1  ready"]
    assert "[####............] 1.0 of 4.0 MB, 2 MB/s" in stream.getvalue()


def test_a_large_world_shows_only_the_slowest() -> None:
    stream = Terminal()
    progress = StartProgress(64, stream)
    phases(progress, 63)
    progress.update(Progress(63, "plan"))
    assert stream.getvalue().rsplit(f"\x1b[{MOST_BARS}A", 1)[-1].count("rank ") == MOST_BARS
    assert "rank 63  reading headers" in stream.getvalue()
