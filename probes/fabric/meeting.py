"""How the ranks of a fabric test tell one another what they found before any collective library runs: through torch's store."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from probes.fabric.reach import Carried, Listener, Place, Reach, carried, place, reach

T = TypeVar("T")


class Store(Protocol):
    """What is used of torch.distributed.Store: `get` waits until a key is there, up to the store's own timeout."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...


class Met(msgspec.Struct, frozen=True):
    """What all ranks found; the same on each of them."""

    places: list[Place]
    reached: list[Reach]
    carried: list[Carried]

def meet(store: Store, rank: int, world: int, node: str = "") -> Met:
    """Every rank calls it. Raises what the store raises when a rank does not come."""
    listener = Listener()
    try:
        mine = place(rank, listener.port, node)
        places = _shared(store, "place", rank, world, mine, Place)
        found = [reach(mine, other) for other in places if other.rank != rank]
        reached = [one for some in _shared(store, "reach", rank, world, found, list[Reach]) for one in some]
        # One after another: two streams at a time would share what is measured.
        streams: list[Carried] = []
        for turn in range(world):
            if turn == rank:
                store.set(f"carried/{turn}", msgspec.json.encode(_streams(mine, places)).decode())
            streams += msgspec.json.decode(store.get(f"carried/{turn}"), type=list[Carried])
        return Met(places, reached, streams)
    finally:
        listener.close()


def _streams(mine: Place, places: list[Place]) -> list[Carried]:
    """To the next rank on another host."""
    after = [*places[mine.rank + 1 :], *places[: mine.rank]]
    other = next((one for one in after if one.host != mine.host), None)
    return [] if other is None else carried(mine, other)


def _shared(store: Store, name: str, rank: int, world: int, mine: T, kind: type[T]) -> list[T]:
    store.set(f"{name}/{rank}", msgspec.json.encode(mine).decode())
    return [msgspec.json.decode(store.get(f"{name}/{other}"), type=kind) for other in range(world)]
