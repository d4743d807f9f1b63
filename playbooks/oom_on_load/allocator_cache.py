"""oom.allocator-cache: freed blocks stay reserved in sizes that the next request cannot use.

What is seen: an allocation fails although more than it asked for is reserved and not allocated.

How it is told apart: by the allocator's own numbers: reserved less allocated above 5 % of the device and above the request. A leak shows as
allocated memory that rises.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result
from playbooks.document import Remedy
from playbooks.oom_on_load.device_error import device_check
from playbooks.oom_on_load.story import NEED

ID = "oom.allocator-cache"
REMEDY = Remedy(
    text="Release cached blocks at layer boundaries, or let segments expand; measure the KV budget after that.",
    command="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    risk="low",
    verify="workbench diagnose oom-on-load --log FILE",
)


def test(case: Case) -> Result:
    return device_check(case, ID, "Reserved memory that is not allocated would have been enough", REMEDY, excess="cached")


CHECK = Check(
    ID, "The allocator holds freed memory in pieces that do not fit", mandatory=False, cost=19, test=test, needs=(NEED,), page=__doc__ or ""
)
