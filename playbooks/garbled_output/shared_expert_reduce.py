"""garbled.shared-expert-reduce: the shared expert is whole on every rank, and is summed over them all the same (or is left unreduced).

How it is told apart: shared and routed parts agree, and their sum is off by a multiple of the shared part: the number of ranks.
"""

from __future__ import annotations

from playbooks.check import Check
from playbooks.garbled_output.from_taps import from_taps

ID = "garbled.shared-expert-reduce"
REMEDY = "Reduce the shared part once; compare one rank with two before serving on more."

CHECK = Check(
    ID,
    "Shared expert",
    False,
    55,
    from_taps(ID, "The shared expert is added more than once", REMEDY, ("shared", "routed", "output")),
    (),
    __doc__ or "",
)
