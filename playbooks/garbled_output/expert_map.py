"""garbled.expert-map: the answer of one expert is given for another.

How it is told apart: exactly the tokens sent to a few experts are wrong, and the answer of each is another's of the same layer.
"""

from __future__ import annotations

from playbooks.check import Check
from playbooks.garbled_output.from_taps import from_taps

ID = "garbled.expert-map"
REMEDY = "Publish map and weights together, and verify the hashes of the slots after each move."

CHECK = Check(
    ID, "Map of the experts", False, 54, from_taps(ID, "Experts stand in each other's places", REMEDY, ("routed",)), (), __doc__ or ""
)
