"""Damages of the files, by kind, for the causes that are seen in them."""

from __future__ import annotations

from typing import Any

from playbooks.case import Case
from playbooks.check import Need
from playbooks.garbled_output.facts import DAMAGE, FILES, fact, facts

MISSING = ("missing-file", "missing", "missing-index", "truncated", "unreadable", "bad-header", "wrong-shape", "wrong-size", "misplaced")
CORRUPT = ("zeros", "non-finite", "outlier", "overlap", "hole", "duplicate", "wrong-dtype", "hash")
UNREAD = ("extra",)
UNLISTED = ("unlisted-file",)  # harmless where the engine follows the index
NEED = Need("files that can be examined", "event", 1, "--model FOLDER", where=f"kind = '{FILES}' AND attrs->>'$.problem' IS NULL", time="")


def of_kinds(case: Case, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    return [one for kind in kinds for one in facts(case, DAMAGE) if one["damage"] == kind]


def counted(case: Case, kinds: tuple[str, ...]) -> int:
    """How many there are: of each kind only the first are written down as facts."""
    counts = (fact(case, FILES) or {}).get("counts") or {}
    return sum(int(counts.get(kind, 0)) for kind in kinds) or len(of_kinds(case, kinds))


def found(case: Case) -> list[dict[str, Any]]:
    """What would make a forward pass wrong: a tap that diverges then has its cause."""
    return of_kinds(case, MISSING + CORRUPT + UNREAD)


def read_whole(case: Case) -> bool:
    return bool((fact(case, FILES) or {}).get("deep"))
