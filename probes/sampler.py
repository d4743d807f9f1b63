"""A thread that takes a sample at a fixed interval, for as long as it is open."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self


class Sampler:
    """Base of the samplers: `start()` takes a sample at once and then one every `interval` seconds, `stop()` takes a last one.

    Also a context manager. The thread is a daemon: it never keeps a dying process alive.
    """

    def __init__(self, name: str, interval: float = 1.0) -> None:
        if interval <= 0:
            raise ValueError(f"interval must be positive, not {interval}")
        self.interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"probe-{name}", daemon=True)

    def sample(self) -> None:
        """Take one sample now. May be called from any thread."""
        raise NotImplementedError

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the thread, then take the last sample. A second call does nothing."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self.sample()

    def _run(self) -> None:
        self.sample()
        while not self._stopped.wait(self.interval):
            self.sample()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
