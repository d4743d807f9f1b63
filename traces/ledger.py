"""Which segments of which producer are in the store."""

from __future__ import annotations

from collections.abc import Mapping


class Ledger:
    """Numbers seen per (producer, boot): everything below `next`, and some above it."""

    def __init__(self, unbroken: Mapping[tuple[str, str], int] | None = None) -> None:
        self._next: dict[tuple[str, str], int] = dict(unbroken or {})
        self._ahead: dict[tuple[str, str], set[int]] = {}

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, tuple):
            return False
        producer, boot, seq = key
        return seq < self._next.get((producer, boot), 0) or seq in self._ahead.get((producer, boot), ())

    def add(self, producer: str, boot: str, seq: int) -> tuple[int, int] | None:
        """Enters a segment. Returns the first and last number newly found missing below it, or None."""
        life = producer, boot
        expected = self._next.get(life, 0)
        ahead = self._ahead.setdefault(life, set())
        above = max(ahead, default=expected - 1) + 1
        ahead.add(seq)
        while expected in ahead:
            ahead.remove(expected)
            expected += 1
        self._next[life] = expected
        return (above, seq - 1) if seq > above else None
