"""oom.comm-buffers: a communicator or an all-to-all buffer is made when nothing is left.

What is seen: the engine serves, and fails at the first collective of a new group, or at the first rebalance of experts.

How it is told apart: by who asked: a collective, an expert rearrangement, an all-to-all library. The buffers grow with ranks and with
physical experts, replicas included.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result
from playbooks.document import Remedy
from playbooks.oom_on_load.device_error import device_check
from playbooks.oom_on_load.story import NEED

ID = "oom.comm-buffers"
REMEDY = Remedy(
    text="Warm every group and one rebalance before the KV cache is sized; count redundant experts in the formula.",
    command=None,
    risk="low",
    verify="workbench diagnose oom-on-load --log FILE",
)


def test(case: Case) -> Result:
    return device_check(case, ID, "Memory outside the framework was asked for by a collective", REMEDY, excess="requested")


CHECK = Check(ID, "Communication buffers were not in the budget", mandatory=False, cost=22, test=test, needs=(NEED,), page=__doc__ or "")
