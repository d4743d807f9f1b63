"""The last log records of the run."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.tui.data.ask import ask
from workbench.tui.feed import Reads

MOST = 500


@dataclass(frozen=True, slots=True)
class Line:
    """One record. `source` is the producer; "tui" is this screen itself."""

    ts: int
    level: str
    source: str
    message: str

    @property
    def text(self) -> str:
        return f"{self.level} {self.source} {self.message}"


def read(store: Reads) -> tuple[Line, ...]:
    """Oldest first."""
    rows = ask(store, f"SELECT ts, level, resource_id, message FROM log ORDER BY ts DESC LIMIT {MOST}")
    return tuple(Line(row["ts"], row["level"], row["resource_id"], first_line(row["message"])) for row in rows[::-1])


def first_line(message: str) -> str:
    return message.splitlines()[0] if message else ""
