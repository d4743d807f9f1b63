"""net.no-overlap: nothing is computed while the exchange is under way.

What is seen: the step is compute plus communication, although batches are large enough to be cut in two. Usual reasons: overlap of two
batches is switched off, a back end without asynchronous all-to-all, no shared expert that could run meanwhile.

How it is told apart: time in dispatch and combine in which the rank computed something (its shared expert), over all of it. Exposed above
0.8 is said (reference section 2), as advice: only where the exchange takes 30 % of the time, ranks are on several hosts and the host is not
contended.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, not_applicable, passed
from playbooks.cross_node.served import LAYERS, several_hosts, transfer_share
from playbooks.document import Remedy
from playbooks.finding import finding, subject

ID = "net.no-overlap"
EXPOSED, MATTERS = 0.8, 0.30


def test(case: Case) -> Result:
    if not several_hosts(case):
        return not_applicable("all ranks are on one host")
    if case.contended:
        return not_applicable("host-contended: times of the exchange say when a core was free")
    share = transfer_share(case)
    query = (
        "SELECT 1 - sum(coalesce(shared, 0)) / nullif(sum(dispatch + combine), 0) AS exposed FROM layer "
        f"WHERE ts BETWEEN {case.period.t0} AND {case.period.t1}"
    )
    exposed = case.store.rows(query)[0]["exposed"]
    if exposed is None or share < MATTERS or exposed < EXPOSED:
        said = f"the exchange takes {share:.0%} of the time" + (
            "" if exposed is None else f", {exposed:.0%} of dispatch and combine exposed"
        )
        return passed(said, exposed and round(exposed, 3), EXPOSED, "share exposed")
    made = finding(
        case,
        ID,
        "info",
        subject("setting", "overlap", hosts=sorted(set(case.hosts.values()))),
        "Nothing is computed while rows travel between hosts",
        f"{exposed:.0%} of dispatch and combine is exposed; the exchange takes {share:.0%} of the layers' time.",
        0.6,
        "supported",
        role="confirmation",
        evidence=(case.sql(query, EXPOSED, "share exposed", "shared experts over dispatch and combine"),),
        remedy=(
            Remedy(
                text="Overlap two batches, or the shared expert with the exchange, where the engine can.",
                risk="medium: the job restarts",
                verify="workbench diagnose cross-node-throughput",
            ),
        ),
    )
    return Result("pass", f"{exposed:.0%} of dispatch and combine is exposed", round(exposed, 3), EXPOSED, "share exposed", (made,))


CHECK = Check(ID, "No overlap", mandatory=False, cost=22, test=test, needs=(LAYERS,), page=__doc__ or "")
