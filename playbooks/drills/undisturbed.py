"""Cleaning up after Ctrl-C without being interrupted by the next one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not cut the clean-up short: it takes seconds, and what it stops would stay. Nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = {name: signal.signal(name, signal.SIG_IGN) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in held.items():
            signal.signal(name, handler)
