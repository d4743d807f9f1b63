"""env.library-drift: hosts of one job run different versions of the collective library, its plugin, or the driver.

What is seen: a hang or an error at start, or slow links to some hosts. A plugin that differs on one node has stopped whole jobs
(aws-ofi-nccl 1.13.2 beside 1.14.0; reference/causes_latency_network_hang_load.md, S6).

How it is told apart: what each host's library logged at its start is compared. A difference is a hypothesis: it says where to look first.
"""

from __future__ import annotations

from collections import Counter

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed
from playbooks.document import Remedy
from playbooks.finding import finding, subject

ID = "env.library-drift"
COMPARED = ("library", "driver", "plugin", "libfabric", "provider", "network")
FACTS = Need(
    "start lines of the collective library",
    "library_fact",
    1,
    "start with NCCL_DEBUG=INFO, then `workbench import` the logs of all hosts",
    time="",
)


def test(case: Case) -> Result:
    query = "SELECT host, name, list_sort(list(DISTINCT value)) AS values FROM library_fact GROUP BY ALL ORDER BY ALL"
    rows = case.store.rows(query, limit=None)
    values: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["name"] in COMPARED:
            values.setdefault(row["name"], {})[row["host"]] = " and ".join(row["values"])
    differing = {name: found for name, found in values.items() if len(set(found.values())) > 1}
    if not differing:
        hosts = len({row["host"] for row in rows})
        return passed(f"{hosts} hosts agree in {len(values)} facts", 0, 0, "differences")
    said = "; ".join(f"{name}: {_listed(found)}" for name, found in differing.items())
    odd = sorted({host for found in differing.values() for host in _odd(found)})
    made = finding(
        case,
        ID,
        "warning",
        subject("host", ",".join(odd), hosts=odd, keys=sorted(differing)),
        f"Hosts run different versions: {', '.join(sorted(differing))}",
        f"{said}. A difference is not yet a cause: it is where to look first.",
        0.5,
        "hypothesis",
        evidence=tuple(
            case.sql(f"SELECT count(DISTINCT value) AS n FROM library_fact WHERE name = '{name}'", 1, "versions", name)
            for name in differing
        ),
        remedy=(
            Remedy(
                text="Give all hosts the same image, driver and plugin, then see whether the symptom is still there.",
                risk="medium: the job restarts",
                command="workbench fingerprint --diff A B",
                verify="workbench import the new logs; workbench diagnose cross-node-throughput",
            ),
        ),
    )
    return Result("warn", said, len(differing), 0, "differences", (made,))


def _listed(found: dict[str, str]) -> str:
    return ", ".join(f"{host} {value}" for host, value in sorted(found.items()))


def _odd(found: dict[str, str]) -> list[str]:
    """Hosts that differ from most; all of them when there is no majority."""
    counted = Counter(found.values()).most_common()
    if len(counted) > 1 and counted[0][1] == counted[1][1]:
        return list(found)
    return [host for host, value in found.items() if value != counted[0][0]]


CHECK = Check(ID, "Libraries that differ between hosts", mandatory=False, cost=0, test=test, needs=(FACTS,), page=__doc__ or "")
