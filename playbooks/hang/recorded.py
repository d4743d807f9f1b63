"""What the flight recorders of a run hold, as one wait graph; and the need that every check of it has."""

from __future__ import annotations

from typing import Any

from playbooks.attribution import wait_graph
from playbooks.attribution.wait_graph import Membership, Op, WaitGraph
from playbooks.case import Case
from playbooks.check import Need

DUMPS = Need(
    "flight-recorder dumps of at least two ranks",
    "flight_group",
    2,
    "start with TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1, then `workbench import` the dumps of all ranks",
    count="count(DISTINCT rank)",
    time="",
)


def graph(case: Case) -> WaitGraph:
    """Read once, whatever the window: a dump is of one moment."""
    if "wait graph" not in case.memo:
        case.memo["wait graph"] = _read(case)
    found: WaitGraph = case.memo["wait graph"]
    return found


def named(groups: WaitGraph, name: str) -> str:
    """A group as a person knows it: `EXPERT_MODEL_PARALLEL_GROUP (74)`."""
    known = groups.groups.get(name)
    return f"{known.meaning} ({name})" if known is not None and known.meaning else f"group {name}"


def _read(case: Case) -> WaitGraph:
    rows = case.store.rows('SELECT rank, "group", meaning, ranks, enqueued, completed FROM flight_group ORDER BY rank', limit=None)
    groups: dict[str, Membership] = {}
    for row in rows:
        if not row["group"]:
            continue
        group = groups.setdefault(row["group"], Membership(row["group"], row["meaning"], tuple(row["ranks"])))
        if row["enqueued"] is not None:
            group.enqueued[row["rank"]], group.completed[row["rank"]] = row["enqueued"], row["completed"]
    entries = case.store.rows('SELECT rank, "group", seq, op, peer, open, sizes, dtypes FROM flight ORDER BY ts', limit=None)
    return wait_graph.of((row["rank"] for row in rows), (_op(row, groups) for row in entries), groups.values())


def _op(row: dict[str, Any], groups: dict[str, Membership]) -> Op:
    peer, ranks = row["peer"], groups[row["group"]].ranks if row["group"] in groups else ()
    if peer is not None and peer < len(ranks):
        peer = ranks[peer]
    return Op(row["rank"], row["group"], row["seq"], row["op"], row["open"], peer, tuple(row["sizes"]), tuple(row["dtypes"]))
