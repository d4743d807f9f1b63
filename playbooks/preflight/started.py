"""What is known of a start: the signs in its logs, and what every rank was told of the others (torchrun's variables in its fingerprint)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from playbooks.case import Case
from playbooks.environment.drift import rank_facts
from playbooks.preflight.reached import read
from probes.foreign.start_log import SIGN, Sign

LOGS = "the log of a start: `workbench diagnose hang --log FILE` for every rank's, or workbench import FILE"


@dataclass(frozen=True, slots=True)
class Told:
    """A rank's own number, how many there are, and where they meet, as its environment says."""

    rank: int
    world: int
    address: str  # host:port


def signs(case: Case, *kinds: str) -> list[Sign]:
    """Signs of these kinds, as they were read."""
    return [one for one in read(case, SIGN, Sign) if one.kind in kinds]


def told(case: Case) -> list[Told]:
    """Of the ranks whose environment holds all of it."""
    found = []
    for facts in rank_facts(case.run).values():
        variables = facts.get("env") or {}
        rank, world = (str(variables.get(name, "")) for name in ("RANK", "WORLD_SIZE"))
        if rank.isdecimal() and world.isdecimal() and "MASTER_PORT" in variables:
            found.append(Told(int(rank), int(world), f"{variables.get('MASTER_ADDR', '')}:{variables['MASTER_PORT']}"))
    return sorted(found, key=lambda one: one.rank)


def odd(values: dict[int, Any]) -> tuple[Any, list[int]]:
    """What more than half of the ranks were told, and the ranks that were told otherwise. (None, all) without a majority."""
    usual, many = Counter(values.values()).most_common(1)[0]
    if 2 * many <= len(values) and many < len(values):
        return None, sorted(values)
    return usual, sorted(rank for rank, value in values.items() if value != usual)
