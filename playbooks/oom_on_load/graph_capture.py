"""oom.graph-capture: the graphs recorded at the start need more memory than was set aside for them.

What is seen: weights and KV cache are in place, and an allocation fails while graphs are captured; one per cent less utilisation passes.

How it is told apart: by the phase. The free memory falls during capture without an allocation of tensors.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Result
from playbooks.document import Remedy
from playbooks.oom_on_load.device_error import device_check
from playbooks.oom_on_load.story import NEED

ID = "oom.graph-capture"
REMEDY = Remedy(
    text="Capture fewer or smaller batch sizes, keep a margin, or size the KV cache after the capture.",
    command="vllm serve MODEL --gpu-memory-utilization 0.9 --max-cudagraph-capture-size N",
    risk="low",
    verify="workbench diagnose oom-on-load --log FILE",
)


def test(case: Case) -> Result:
    return device_check(case, ID, "Graph capture takes what the KV cache left", REMEDY, excess="graph")


CHECK = Check(
    ID, "Recording device graphs needs more than was left", mandatory=False, cost=21, test=test, needs=(NEED,), page=__doc__ or ""
)
