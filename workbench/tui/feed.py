"""Reading a run from a thread: one handle for each screen, kept while the run lives, opened again after a failure.

A recorded run's file is opened for each reading and closed at once: an open reader would keep a collector, or a diagnosis that
wants to write its document, from opening it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

LIVE, RECORDED, CRASHED = "live", "recorded", "crashed"

# DuckDB opens a file a second time in one process only with the same configuration: those who open a recorded run take turns.
_FILE = Lock()


def file_turn(live: bool) -> AbstractContextManager[object]:
    """Held while a recorded run's file is open; a live run's collector answers everybody at once."""
    return nullcontext() if live else _FILE


class Reads(Protocol):
    """The part of traces.store.Store that the screens use."""

    @property
    def live(self) -> bool: ...
    @property
    def info(self) -> Any: ...
    def query(self, sql: str, params: Sequence[Any] | None = None, limit: int | None = None) -> Any: ...
    def rows(self, sql: str, params: Sequence[Any] | None = None) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What the header says about the run. `created` in ns since the epoch."""

    id: str
    model: str
    layout: str
    world_size: int
    created: int
    state: str


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A snapshot, and the run it was read from."""

    value: T
    facts: Facts


class Feed:
    """The store handle of one screen. `read` is called from one thread at a time."""

    def __init__(self, opener: Callable[[], Reads]) -> None:
        self._open = opener
        self._store: Reads | None = None
        self._lock = Lock()

    def read(self, ask: Callable[[Reads], T]) -> Reading[T]:
        """Asks the store; whatever goes wrong is raised, and the next reading opens the store again."""
        with self._lock:
            if self._store is not None:
                return self._ask(ask, self._store)
            with _FILE:
                store = self._open()
                if not store.live:
                    return self._ask(ask, store)
            return self._ask(ask, store)

    def _ask(self, ask: Callable[[Reads], T], store: Reads) -> Reading[T]:
        """One reading; a live store is kept for the next one."""
        self._store = None
        try:
            reading = Reading(ask(store), facts(store))
        except BaseException:
            store.close()
            raise
        if reading.facts.state == LIVE:
            self._store = store
        else:
            store.close()
        return reading

    def close(self) -> None:
        """Lets go of the handle. A reading in progress finishes first."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None


def facts(store: Reads) -> Facts:
    """The header's facts of an open store."""
    info = store.info
    state = LIVE if store.live else RECORDED if info.state == "closed" else CRASHED
    return Facts(info.id, info.model, layout(info.layout), info.world_size, info.created, state)


def layout(sizes: Any) -> str:
    """tp1 pp1 dp4 ep4 -> "dp4 ep4": only what is parallel."""
    parts = sizes if isinstance(sizes, dict) else {name: getattr(sizes, name, 1) for name in ("tp", "pp", "dp", "ep")}
    return " ".join(f"{name}{size}" for name, size in parts.items() if isinstance(size, int) and size > 1)
