"""Opening the store of a run for the screens."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from traces.errors import Unreachable

if TYPE_CHECKING:
    from traces.run import Run
    from traces.store import Store

PATIENCE = 30.0  # seconds in which a collector that went away may come back before the run counts as crashed


class Opener:
    """Opens the run by whichever way there is.

    A live run whose collector has just gone is waited for: reading its file at once would be in the way of a collector that starts again.
    """

    def __init__(self, run: Run, patience: float = PATIENCE, clock: Callable[[], float] = monotonic) -> None:
        self._run, self._patience, self._clock = run, patience, clock
        self._live = False
        self._gone: float | None = None

    def __call__(self) -> Store:
        """Raises Unreachable while the collector is waited for, and what open_run raises."""
        from traces.store import open_run

        if self._live and self._run.info.state == "running" and self._run.collector() is None:
            self._gone = self._clock() if self._gone is None else self._gone
            if self._clock() - self._gone < self._patience:
                raise Unreachable("the collector is gone", "the ranks keep what they record in their spools")
        self._gone = None
        store = open_run(self._run)
        self._live = store.live
        return store
