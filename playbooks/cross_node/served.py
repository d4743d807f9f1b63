"""The traffic of a run of ours: what exchange, dispatch and combine take of its layers, and which bytes leave a host."""

from __future__ import annotations

from dataclasses import dataclass

from playbooks.attribution.frontier import SEGMENTS
from playbooks.case import Case
from playbooks.check import Need
from playbooks.environment.host_contention import shares
from playbooks.measured import Floats

LAYERS = Need("detailed steps", "layer", 100, "serve with --detail-every 16 or smaller, under traffic")


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's host and its place in the mesh."""

    host: str
    pp: int
    dp: int
    tp: int


def places(case: Case) -> dict[int, Place]:
    """Of the ranks whose place is known."""
    rows = case.store.rows(
        "SELECT rank, any_value(host) AS host, any_value(pp) AS pp, any_value(dp) AS dp, any_value(tp) AS tp FROM resource "
        "WHERE rank IS NOT NULL AND role = 'rank' GROUP BY rank ORDER BY rank"
    )
    return {row["rank"]: Place(row["host"], row["pp"] or 0, row["dp"] or 0, row["tp"] or 0) for row in rows}


def several_hosts(case: Case) -> bool:
    return len(set(case.hosts.values())) > 1


def transfer_share(case: Case) -> float:
    """Share of the layers' time in exchange, dispatch and combine, 0..1."""
    return shares(case)


def transfers(case: Case) -> tuple[Floats, Floats]:
    """[n], [n] of every detailed layer: ns in dispatch and combine, and rows of the busiest rank."""
    increments = case.frontier.increments
    column = {name: increments[:, SEGMENTS.index(name)] for name in ("dispatch", "combine")}
    return column["dispatch"] + column["combine"], case.layers["tokens_routed"].max(axis=1)
