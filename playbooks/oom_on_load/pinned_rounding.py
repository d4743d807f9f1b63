"""oom.pinned-rounding: the page-locked allocator rounds every block up to a power of two.

What is seen: an offload is planned to fit the host and takes up to twice its bytes; the error speaks of page-locked memory, not of the
device.

How it is told apart: by the words of the error, and by a growth of shared or locked memory that equals the rounding.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result
from playbooks.document import Remedy
from playbooks.oom_on_load.device_error import device_check
from playbooks.oom_on_load.story import NEED

ID = "oom.pinned-rounding"
REMEDY = Remedy(
    text="Register memory of exact size, or pack many tensors into arenas of a power of two.",
    command=None,
    risk="low",
    verify="workbench diagnose oom-on-load --log FILE",
)


def test(case: Case) -> Result:
    return device_check(case, ID, "Page-locked memory is used up", REMEDY, excess="requested")


CHECK = Check(ID, "Page-locked host memory is rounded up", mandatory=False, cost=23, test=test, needs=(NEED,), page=__doc__ or "")
