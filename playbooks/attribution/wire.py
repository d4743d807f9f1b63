"""Splits the collectives of a layer into latency, bytes and bandwidth through the tiny one among them.

The count exchange carries no bytes worth the name: if it gets longer, the host or a launch is late, never the link. Dispatch and combine
cost the same latency each, and on top of it their bytes. What the bytes of the busiest rank take at the best pace seen in the same
window is the ideal; what is beyond it is lost bandwidth. On a starved host the difference comes out negative: then nothing is said
about bandwidth instead of a clamped number (reference/causes_latency_network_hang_load.md section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Dispatch and combine.
PAYLOADS = 2
# The reference is the quiet part of the same window, never another day (section 3.2).
QUIET = 0.10
# Negative transfer beyond this part of the whole: host-contended, bandwidth undetermined (section 3.2).
NEGATIVE = 0.10


@dataclass(frozen=True, slots=True)
class Wire:
    """All [n] ns per layer. `host`: latency beyond the quiet one, in all three collectives; `ideal`: quiet latency, and the mean rank's
    bytes at the best pace; `uneven`: bytes of the busiest rank beyond the mean; `bandwidth`: the rest, None where it is undetermined.
    """

    ideal: Floats
    host: Floats
    uneven: Floats
    bandwidth: Floats | None
    reason: str = ""


def split(tiny: Floats, payload: Floats, busiest: Floats, mean: Floats, contended: bool = False) -> Wire:
    """`tiny` and `payload` [n] ns: increments of the count exchange, and of dispatch and combine together; `busiest` and `mean` [n]: rows
    (or bytes) of the busiest and of the mean rank.
    """
    quiet = float(np.quantile(tiny, QUIET))
    host = np.maximum(tiny - quiet, 0.0)
    transfer = payload - PAYLOADS * tiny
    moving = busiest > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = max(0.0, float(np.quantile(transfer[moving] / busiest[moving], QUIET))) if moving.any() else 0.0
    uneven = pace * (busiest - mean)
    lost = transfer - pace * busiest
    ideal = (1 + PAYLOADS) * quiet + pace * mean
    negative = float(-np.minimum(transfer, 0.0).sum())
    latency = (1 + PAYLOADS) * host
    if contended:
        return Wire(ideal, latency, uneven, None, "host-contended, bandwidth undetermined")
    if negative > NEGATIVE * float(np.abs(transfer).sum()):
        return Wire(ideal, latency, uneven, None, "the latency varies by more than the bytes take, bandwidth undetermined")
    return Wire(ideal, latency, uneven, lost)
