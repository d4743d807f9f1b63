"""What every screen's header shows: the run, whether it answers, and what was lost."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.tui.feed import LIVE, Facts

STATES = {"live": ("●", "success"), "recorded": ("■", "primary"), "crashed": ("✖", "error"), "waiting": ("◌", "warning")}


@dataclass(frozen=True, slots=True)
class Problem:
    """A reading that failed: since when, and in words."""

    since: int
    words: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """`updated` is when the shown data were read; times in ns since the epoch."""

    facts: Facts | None = None
    updated: int = 0
    problem: Problem | None = None
    dropped: int = 0
    paused: bool = False

    @property
    def state(self) -> str:
        if self.facts is None or (self.problem is not None and self.facts.state == LIVE):
            return "waiting"
        return self.facts.state

    @property
    def changing(self) -> bool:
        """Whether reading again can bring something new: not where nothing records any more."""
        return self.facts is None or self.problem is not None or self.facts.state == LIVE
