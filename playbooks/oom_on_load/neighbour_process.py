"""oom.neighbour-process: another process holds memory of the device. A control: nothing is wrong with the engine.

What is seen: less is free at the start than the engine was told to use.

How it is told apart: by the numbers before the first tensor is loaded. A driver's own context takes 0.3 to 0.5 GiB.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result
from playbooks.document import Remedy
from playbooks.oom_on_load.device_error import device_check
from playbooks.oom_on_load.story import NEED

ID = "oom.neighbour-process"
REMEDY = Remedy(
    text="End the other process, or give the engine what is really free.",
    command="nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
    risk="low",
    verify="workbench diagnose oom-on-load --log FILE",
)


def test(case: Case) -> Result:
    return device_check(case, ID, "The device was not empty before the engine started", REMEDY, excess="neighbour")


CHECK = Check(ID, "Somebody else uses the device", mandatory=False, cost=17, test=test, needs=(NEED,), page=__doc__ or "")
