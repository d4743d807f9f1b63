"""garbled.router: another score function, no renormalisation, the scaling factor twice or never, the selection bias in the weights.

How it is told apart: four questions to one batch of tokens: the experts, the sum of their weights, whether its ratio is one number, and
the proportions (S2.3, garbled.router). A near-tie that sends one token elsewhere is no finding.
"""

from __future__ import annotations

from playbooks.check import Check
from playbooks.garbled_output.from_taps import from_taps

ID = "garbled.router"
REMEDY = "Resolve the router from the model's own config: scores, renormalisation, scaling once, bias for the choice alone."

CHECK = Check(
    ID,
    "Router",
    False,
    51,
    from_taps(ID, "Experts are chosen or weighed otherwise than the model was trained with", REMEDY, ("router.experts", "router.weights")),
    (),
    __doc__ or "",
)
