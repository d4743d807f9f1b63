"""net.placement: ranks of one tensor-parallel group are on different hosts although a host has room for the group.

What is seen: two all-reduces a layer over the slowest links there are, throughput falls with every host. Usual reasons: a launcher that
deals ranks out round-robin over hosts, a node count that does not divide the group.

How it is told apart: host and place in the mesh of every rank. A group that is larger than any host's share cannot be placed better,
and is not named. Keep tensor-parallel ranks inside a host and pipeline stages across them (legacy-rocm-build issue 5554).
"""

from __future__ import annotations

from collections import Counter

from playbooks.case import Case
from playbooks.check import Check, Need, Result, not_applicable, passed
from playbooks.cross_node.served import places
from playbooks.document import Remedy
from playbooks.finding import finding, subject

ID = "net.placement"
RANKS = Need("places of the ranks", "resource", 2, "serve with telemetry on", where="role = 'rank' AND tp IS NOT NULL", time="")


def test(case: Case) -> Result:
    found = places(case)
    on_host = Counter(place.host for place in found.values())
    if len(on_host) < 2:
        return not_applicable("all ranks are on one host")
    groups: dict[tuple[int, int], list[int]] = {}
    for rank, place in found.items():
        groups.setdefault((place.pp, place.dp), []).append(rank)
    room = max(on_host.values())
    split = {key: ranks for key, ranks in groups.items() if len({found[rank].host for rank in ranks}) > 1 and len(ranks) <= room}
    if not split:
        return passed(
            f"{len(groups)} tensor-parallel groups of {max(map(len, groups.values()))} stay inside a host, or fit into none", 0, 0, "groups"
        )
    ranks = sorted(rank for group in split.values() for rank in group)
    hosts = sorted({found[rank].host for rank in ranks})
    size = max(map(len, split.values()))
    made = finding(
        case,
        ID,
        "error",
        subject("group", f"tp of {size}", ranks=ranks, hosts=hosts),
        f"{len(split)} tensor-parallel groups of {size} ranks are spread over {len(hosts)} hosts",
        f"Ranks {', '.join(map(str, ranks))} exchange activations twice a layer between {', '.join(hosts)}; a host has {room} ranks, so "
        f"that a group of {size} would fit into one.",
        0.85,
        "established",
        evidence=(
            case.sql(
                "SELECT max(hosts) AS n FROM (SELECT count(DISTINCT host) AS hosts FROM resource WHERE role = 'rank' AND tp IS NOT NULL "
                "GROUP BY pp, dp)",
                1,
                "hosts",
                "of one tensor-parallel group",
            ),
        ),
        remedy=(
            Remedy(
                text="Start ranks so that neighbours share a host (block distribution); let stages cross hosts, not these groups.",
                config={"srun": "--distribution=block"},
                risk="medium: the job restarts",
                command="workbench plan MODEL --nodes N --devices-per-node M",
                verify="workbench diagnose cross-node-throughput",
            ),
        ),
    )
    return Result("fail", f"{len(split)} groups are spread over hosts", len(split), 0, "groups", (made,))


CHECK = Check(ID, "Tensor-parallel groups across hosts", mandatory=False, cost=3, test=test, needs=(RANKS,), page=__doc__ or "")
