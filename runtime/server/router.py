"""Which rank a request goes to: the one that has the least to compute before it, counting what it would not have to compute again.

Loads are fresh: what was handed to a rank counts from that moment, and what a rank has computed is taken off with the frame that says so.
What a rank has cached is estimated from the prompts it was sent last, as many blocks as it has; the `prefill` span says what it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Load(Protocol):
    """What is needed of a rank's state."""

    rank: int
    outstanding: int  # tokens that it has still to compute, at most
    taken: int  # requests it has been given so far


@dataclass(frozen=True, slots=True)
class Route:
    """`queued` tokens stood before the request on its rank; `cached` tokens of its prompt should be in the rank's cache."""

    rank: int
    queued: int
    cached: int


class Router:
    """Belongs to the event loop of the API process."""

    def __init__(self, ranks: int, block_size: int) -> None:
        self._block_size = block_size
        self._known: list[dict[bytes, None]] = [{} for _ in range(ranks)]  # by rank, the longest unused first

    def choose(self, loads: Sequence[Load], prefix: Sequence[bytes], prompt: int) -> Route:
        """The rank with the least outstanding and new tokens; of equals the one that was given the fewest requests."""
        routes = []
        for load in loads:
            cached = min(self._cached(load.rank, prefix), prompt - 1)
            routes.append((load.outstanding + prompt - cached, load.taken, load.rank, Route(load.rank, load.outstanding, cached)))
        return min(routes)[-1]

    def sent(self, rank: int, prefix: Sequence[bytes], capacity: int) -> None:
        """The rank will have computed this prompt; it has `capacity` KV blocks."""
        known = self._known[rank]
        for digest in prefix:
            known.pop(digest, None)
            known[digest] = None
        while len(known) > capacity:
            del known[next(iter(known))]

    def forget(self) -> None:
        """The ranks have dropped all cached content."""
        for known in self._known:
            known.clear()

    def _cached(self, rank: int, prefix: Sequence[bytes]) -> int:
        blocks, known = 0, self._known[rank]
        for digest in prefix:
            if digest not in known:
                break
            blocks += 1
        return blocks * self._block_size
