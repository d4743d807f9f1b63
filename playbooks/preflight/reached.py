"""What a fabric test found before any collective: places of ranks and who reaches whom; and the need that every check of it has."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from playbooks.case import Case
from playbooks.check import Need
from probes.fabric.reach import Place, Reach
from probes.fabric.record import PLACE, REACH

T = TypeVar("T")

REACHED = Need("connects between all pairs of ranks", "event", 1, "workbench fabric on all hosts", where=f"kind = '{REACH}'", time="")


def read(case: Case, kind: str, form: type[T]) -> list[T]:
    """The attributes of all events of a kind, in the order of ranks. Read once."""
    if kind not in case.memo:
        rows = case.store.rows(f"SELECT attrs FROM event WHERE kind = {case.literal(kind)} ORDER BY rank", limit=None)
        case.memo[kind] = [msgspec.json.decode(row["attrs"], type=form) for row in rows]
    found: list[T] = case.memo[kind]
    return found


def places(case: Case) -> dict[int, Place]:
    return {one.rank: one for one in read(case, PLACE, Place)}


def reached(case: Case) -> list[Reach]:
    return read(case, REACH, Reach)


def host(case: Case, rank: int) -> str:
    return case.hosts.get(rank, f"rank {rank}")


def unbound(case: Case) -> list[Place]:
    """Ranks whose library finds no address to bind, or one on which ranks of other hosts cannot reach them."""
    found = places(case)
    several = len({one.host for one in found.values()}) > 1
    return [one for one in found.values() if not one.address or (several and not one.interface)]
