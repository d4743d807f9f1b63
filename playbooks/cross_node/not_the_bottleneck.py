"""net.not-the-bottleneck: never fails; says how much of the time goes into the exchange between ranks at all.

What is seen: somebody doubles the NICs and nothing gets faster (vLLM issue 6610). Below 10 % of the layers' time in exchange, dispatch and
combine no network can be the reason: stop here, and look at tail-latency (reference section 4, S5, step 1).
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.cross_node.served import LAYERS, transfer_share

ID = "net.not-the-bottleneck"
LITTLE = 0.10


def test(case: Case) -> Result:
    share = transfer_share(case)
    said = f"exchange, dispatch and combine take {share:.0%} of the layers' time"
    if share < LITTLE:
        said += ": the network is not what limits this run, see tail-latency"
    elif case.contended:
        said += "; the host is contended, so that most of it may be waiting for a core"
    return passed(said, round(share, 3), LITTLE, "share of the time")


CHECK = Check(ID, "How much the network takes at all", mandatory=False, cost=20, test=test, needs=(LAYERS,), page=__doc__ or "")
