"""oom.mm-profile: the profile run reserves for the largest pictures the model could be sent.

What is seen: text-only limits pass; with vision on, the profile run fails though real pictures are small.

How it is told apart: by phase and stack: profiling, inside the vision encoder. If real traffic does send such pictures, it is right.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result
from playbooks.document import Remedy
from playbooks.oom_on_load.device_error import device_check
from playbooks.oom_on_load.story import NEED

ID = "oom.mm-profile"
REMEDY = Remedy(
    text="Cap pixels per picture and pictures per prompt, in the profile as well; reject larger ones at the edge.",
    command="vllm serve MODEL --limit-mm-per-prompt image=1",
    risk="low",
    verify="workbench diagnose oom-on-load --log FILE",
)


def test(case: Case) -> Result:
    return device_check(case, ID, "The dummy pictures of the profile run do not fit", REMEDY, excess="requested")


CHECK = Check(
    ID, "The profile run encodes larger pictures than any request", mandatory=False, cost=20, test=test, needs=(NEED,), page=__doc__ or ""
)
