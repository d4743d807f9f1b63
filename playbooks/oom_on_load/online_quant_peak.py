"""oom.online-quant-peak: a wide checkpoint is quantised while it is loaded, and both copies exist at once.

What is seen: the narrow model would fit, and loading fails in the conversion, at about the size of the wide one.

How it is told apart: by the stack: a quantisation inside the processing after loading. A repack keeps the dtype.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result
from playbooks.document import Remedy
from playbooks.oom_on_load.device_error import device_check
from playbooks.oom_on_load.story import NEED

ID = "oom.online-quant-peak"
REMEDY = Remedy(
    text="Make the weights on the meta device and quantise each module when it is complete, or load a quantised checkpoint.",
    command=None,
    risk="low",
    verify="workbench diagnose oom-on-load --log FILE",
)


def test(case: Case) -> Result:
    return device_check(case, ID, "The wide weights are still there while the narrow ones are made", REMEDY, excess="requested")


CHECK = Check(ID, "Quantising while loading needs both copies", mandatory=False, cost=24, test=test, needs=(NEED,), page=__doc__ or "")
