"""garbled.attention: keys and values agree, and what attention makes of them differs from some position on.

How it is told apart: the first diverging tap is behind attention and not at position 0: a window, a mask or a length that is not the
model's.
"""

from __future__ import annotations

from playbooks.check import Check
from playbooks.garbled_output.from_taps import from_taps

ID = "garbled.attention"
REMEDY = "Use the model's own window and mask; compare another attention kernel with all else pinned."

CHECK = Check(
    ID,
    "Attention",
    False,
    56,
    from_taps(ID, "Attention reads what it should not, or not all it should", REMEDY, ("attention",)),
    (),
    __doc__ or "",
)
