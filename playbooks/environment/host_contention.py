"""env.host-contended: more runnable work than cores. The wall clock then says when the host gave a core, not how long a thing takes.

What is seen: every rank is slow now and then, in everything, the tiny count exchange included. It is a note, not a fault by itself:
it says on which basis the other checks judge. A *single* rank that is interrupted is tail.straggler-rank. Bandwidth cannot be told
from waiting on such a host: a link is reported as "host-contended, bandwidth undetermined", never as slow
(reference/causes_latency_network_hang_load.md section 3.2).
"""

from __future__ import annotations

import numpy as np

from playbooks.attribution.frontier import SEGMENTS
from playbooks.case import CONTENDED_INFLATION, CONTENDED_PSI, Case
from playbooks.check import Check, Need, Result, passed
from playbooks.document import Impact, Remedy
from playbooks.finding import finding, subject

ID = "env.host-contended"

NEEDS = (
    Need(
        "pressure of the host (PSI)",
        "host",
        3,
        "serve with telemetry on: `workbench serve` samples /proc/pressure",
        where="psi_cpu IS NOT NULL",
    ),
)


def test(case: Case) -> Result:
    psi, inflation = case.psi_cpu, case.inflation
    said = f"tasks wait for a CPU {psi:.0%} of the time" if psi is not None else "no PSI"
    if inflation is not None:
        said += f"; compute takes {inflation:.2f}x its CPU time"
    if not case.contended:
        return passed(said, None if psi is None else round(psi, 4), CONTENDED_PSI, "PSI cpu")
    hosts = sorted(set(case.hosts.values()))
    evidence = [case.sql(case.psi_sql(), CONTENDED_PSI, "share of time", "PSI cpu some avg10, median of the window")]
    if inflation is not None:
        evidence.append(case.derived("sum of attention and experts over their CPU time", round(inflation, 4), CONTENDED_INFLATION, "ratio"))
    parts = shares(case)
    found = finding(
        case,
        ID,
        "info",
        subject("host", hosts[0] if hosts else "", hosts=hosts),
        "The host is contended: costs are judged by CPU time, bandwidth is undetermined",
        f"{said[0].upper()}{said[1:]}. Exchange, dispatch and combine take {parts:.0%} of the layers here, but "
        "on a contended host that is mostly waiting "
        "for a core: host-contended, bandwidth undetermined.",
        0.9,
        "established",
        role="confirmation",
        impact=None
        if inflation is None
        else Impact(metric="compute time", value=round(inflation, 4), unit="x CPU time", share=round(1 - 1 / inflation, 4)),
        evidence=tuple(evidence),
        remedy=(
            Remedy(
                text="Give the ranks cores of their own, or stop the other work on the host; then measure again.",
                risk="low",
                verify="workbench diagnose tail-latency",
            ),
        ),
    )
    return Result("pass", said, None if psi is None else round(psi, 4), CONTENDED_PSI, "PSI cpu", (found,))


def shares(case: Case) -> float:
    """Share of the collectives in the layers' time by the frontier."""
    increments = case.frontier.increments.sum(axis=0) if case.layers.steps else np.zeros(len(SEGMENTS))
    total = float(increments.sum())
    moved = float(sum(increments[SEGMENTS.index(name)] for name in ("exchange", "dispatch", "combine")))
    return moved / total if total > 0 else 0.0


CHECK = Check(ID, "Host contended", mandatory=False, cost=10, test=test, needs=NEEDS, page=__doc__ or "")
