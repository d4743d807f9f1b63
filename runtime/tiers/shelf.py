"""Which expert lies in which frame of memory, and which has to go when another comes. Torch-free.

What goes is what was needed in the fewest recent steps, not what was needed longest ago: layers come round in a fixed order, and for that
order the oldest is always the one needed next. A long prompt that touches every expert once therefore does not drive out those that every
step needs (reference/causes_latency_network_hang_load.md, S4 case 27: a prefill evicts the decode set).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass

HALF_LIFE = 256  # steps after which a need counts half (our choice: tens of seconds of decoding, as placements are judged by)

Key = tuple[int, int]  # (layer, local slot)


@dataclass(slots=True)
class _Need:
    weight: float = 0.0
    step: int = 0

    def at(self, step: int) -> float:
        return self.weight * math.exp2((self.step - step) / HALF_LIFE)


class Shelf:
    """`frames` places. One thread brings experts in (`place`), another uses them; both may wait for a frame to be free."""

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self.step = 0
        self.demoted = 0  # experts that had to go
        self._free = list(range(frames))
        self._where: dict[Key, int] = {}
        self._held: set[Key] = set()  # needed now: these stay
        self._needs: dict[Key, _Need] = {}
        self._ended = False
        self._changed = threading.Condition()

    def need(self, keys: Iterable[Key]) -> list[Key]:
        """The experts of a layer that a step computes with: counted, held until `release`. Returns those that are not here."""
        with self._changed:
            wanted = list(keys)
            for key in wanted:
                known = self._needs.setdefault(key, _Need())
                known.weight, known.step = known.at(self.step) + 1.0, self.step
            self._held = set(wanted)
            self._changed.notify_all()
            return [key for key in wanted if key not in self._where]

    def expect(self, keys: Iterable[Key]) -> None:
        """Experts that the next layer will likely need: held until that layer says what it does need."""
        with self._changed:
            self._held |= set(keys)

    def release(self, key: Key) -> None:
        with self._changed:
            self._held.discard(key)
            self._changed.notify_all()

    def frame_of(self, key: Key) -> int | None:
        with self._changed:
            return self._where.get(key)

    def end(self) -> None:
        """Nobody computes any more: who waits for a frame gets none."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def take(self, wait: bool) -> int | None:
        """A frame for a newcomer, whose place in the table is given by `put`. Without `wait` None when every expert here is held, and with
        it after `end`.
        """
        with self._changed:
            while True:
                if self._free:
                    return self._free.pop()
                victims = [key for key in self._where if key not in self._held]
                if victims:
                    victim = min(victims, key=lambda key: self._needs[key].at(self.step) if key in self._needs else 0.0)
                    self.demoted += 1
                    return self._where.pop(victim)
                if not wait or self._ended:
                    return None
                self._changed.wait()

    def put(self, key: Key, frame: int) -> None:
        with self._changed:
            self._where[key] = frame

    def give_back(self, frame: int) -> None:
        """A frame that could not be filled."""
        with self._changed:
            self._free.append(frame)
            self._changed.notify_all()

    @property
    def resident(self) -> int:
        with self._changed:
            return len(self._where)
