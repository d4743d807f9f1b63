"""Windows of time: the last seconds of a live run, or of what was recorded."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.tui import numbers
from workbench.tui.data.ask import ask
from workbench.tui.feed import Reads

SECOND = 1_000_000_000
_LAG = 600_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` to `end`, ns since the epoch. `whole` is true where it is the whole run."""

    start: int
    end: int
    whole: bool
    live: bool

    @property
    def length(self) -> int:
        return max(self.end - self.start, 1)

    @property
    def words(self) -> str:
        length = numbers.span(self.length)
        return f"whole run, {length}" if self.whole else f"last {length}"


def since(store: Reads, window: int | None, now: int) -> Span:
    """The last `window` ns before the present of a live run, or before the last step of a recorded one; None is all of it.

    A live window ends on a whole second that is complete (a producer ships every 250 ms), so that bars never flicker.
    """
    if store.live:
        end = (now - _LAG) // SECOND * SECOND
        if window is not None:
            return Span(end - window, end, False, True)
        first = ask(store, "SELECT min(ts) AS first FROM step")[0]["first"]
        return Span(min((first if first is not None else end) // SECOND * SECOND, end - SECOND), end, True, True)
    row = ask(store, "SELECT min(ts) AS first, max(ts + dur) AS last FROM step")[0]
    end = (row["last"] if row["last"] is not None else now) + 1
    first = row["first"] if row["first"] is not None else end - SECOND
    if window is None or end - window <= first:
        return Span(first, end, True, False)
    return Span(end - window, end, False, False)
