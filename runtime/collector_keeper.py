"""Keeps the run's collector alive: ranks spool while it is gone, and what they spooled is taken in when it is back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from traces.errors import WorkbenchError
from traces.run import Run

if TYPE_CHECKING:
    from traces.collector.process import CollectorProcess

log = logging.getLogger("runtime.collector")
LOOK_SECONDS = 1.0
MOST_RESTARTS = 5  # then something is wrong that a restart does not cure, such as a full disk


@dataclass(slots=True)
class CollectorKeeper:
    """`started` is awaited before the server calls itself ready, so that its run can be asked at once."""

    run: Run
    bind: str = "127.0.0.1"
    restarts: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    _process: CollectorProcess | None = None
    _task: asyncio.Task[None] | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Ends the collector cleanly: everything it was sent is in the store afterwards."""
        self._stop.set()
        if self._task is not None:
            await self._task
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    async def _keep(self) -> None:
        while not self._stop.is_set() and self.restarts <= MOST_RESTARTS:
            if self._process is None or not self._process.alive:
                await self._start()
            self.started.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), LOOK_SECONDS)

    async def _start(self) -> None:
        from traces.collector.process import start

        if self._process is not None:
            self.restarts += 1
            log.error("the collector is gone; started again at %s", time.strftime("%H:%M:%S"))
        try:
            self._process = await asyncio.to_thread(start, self.run, bind=self.bind)
        except WorkbenchError as error:
            self.restarts += 1
            log.error("the collector does not start: %s", error)
