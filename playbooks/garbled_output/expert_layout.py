"""garbled.expert-layout: gate and up are exchanged, or interleaved where they should not be.

How it is told apart: experts and weights agree, every token's sum differs, and with the halves exchanged it is the reference's.
"""

from __future__ import annotations

from playbooks.check import Check
from playbooks.garbled_output.from_taps import from_taps

ID = "garbled.expert-layout"
REMEDY = "Convert the checkpoint with the layout that the engine declares; never by shape."

CHECK = Check(
    ID,
    "Layout of the experts' matrices",
    False,
    53,
    from_taps(ID, "The halves of the experts' matrices are exchanged", REMEDY, ("routed",)),
    (),
    __doc__ or "",
)
