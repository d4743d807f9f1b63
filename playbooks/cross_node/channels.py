"""What collective libraries logged about their channels, and the need that every check of it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, skipped

NET_CHANNELS = Need(
    "network channels in the debug log of the collective library",
    "channel",
    1,
    "start with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV, then `workbench import` the logs of all hosts",
    where="transport = 'NET'",
    time="",
)


@dataclass(frozen=True, slots=True)
class HostNics:
    """Network channels of one host. `by_nic` counts them per device, `direct` those that bypass host memory."""

    host: str
    networks: tuple[str, ...]
    channels: int
    direct: int
    by_nic: dict[int, int]


def hosts(case: Case) -> dict[str, HostNics]:
    """Every host that logged a network channel."""
    rows = case.store.rows(
        "SELECT host, network, nic, count(*) AS n, count(*) FILTER (WHERE gdr) AS direct FROM channel WHERE transport = 'NET' "
        "GROUP BY ALL ORDER BY ALL",
        limit=None,
    )
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["host"], []).append(row)
    return {host: _host(host, found) for host, found in grouped.items()}


def facts(case: Case, name: str) -> dict[str, tuple[str, ...]]:
    """Host -> the values it logged under a name (`%` stands for anything)."""
    rows = case.store.rows("SELECT host, name, value FROM library_fact WHERE name LIKE ? ORDER BY host, name, value", [name])
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        value = row["value"] if "%" not in name else f"{row['name'].removeprefix('env.')}={row['value']}"
        found[row["host"]] = (*found.get(row["host"], ()), value)
    return found


def _host(host: str, rows: list[dict[str, Any]]) -> HostNics:
    by_nic: dict[int, int] = {}
    for row in rows:
        by_nic[row["nic"]] = by_nic.get(row["nic"], 0) + row["n"]
    networks = tuple(sorted({row["network"] for row in rows}))
    return HostNics(host, networks, sum(row["n"] for row in rows), sum(row["direct"] for row in rows), by_nic)


def channel_check(name: str, title: str, test: Callable[[Case], Result], page: str) -> Check:
    """A mandatory check over network channels. Not applicable where every host states that its library has none (gloo: plain sockets)."""

    def judged(case: Case) -> Result:
        if case.store.rows(NET_CHANNELS.sql(0, 0))[0]["n"]:
            return test(case)
        backends = {value for values in facts(case, "backend").values() for value in values}
        if backends == {"gloo"}:
            return not_applicable("gloo goes over TCP sockets always, and has no channels")
        return skipped(f"{NET_CHANNELS.what}: none; {NET_CHANNELS.provide}")

    return Check(name, title, mandatory=True, cost=1, test=judged, page=page)
