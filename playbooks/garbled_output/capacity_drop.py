"""garbled.capacity-drop: an expert takes only so many tokens, and the rest go without it.

How it is told apart: choices agree, some have weight 0, and the weights of all other tokens are the reference's.
"""

from __future__ import annotations

from playbooks.check import Check
from playbooks.garbled_output.from_taps import from_taps

ID = "garbled.capacity-drop"
REMEDY = "Serve without a capacity, or with one that no batch exceeds."

CHECK = Check(
    ID,
    "Capacity",
    False,
    52,
    from_taps(ID, "Tokens are dropped by a capacity", REMEDY, ("router.experts", "router.weights")),
    (),
    __doc__ or "",
)
