"""image.channel-order: the channels were exchanged, mostly BGR for RGB.

How it is told apart: the picture with permuted channels is the observed one. A grey picture cannot tell: all orders explain it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import permutations

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Floats, Probe
from playbooks.image_drift.way import Alternative, same


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    if probe.uneven:  # the axes inside a patch are mixed up, which looks like a permutation in the first temporal position
        return []
    return [
        same(probe, f"read as {''.join('RGB'[c] for c in order)} instead of RGB", partial(_ordered, probe, order))
        for order in permutations(range(3))
        if order != (0, 1, 2)
    ]


def _ordered(probe: Probe, order: tuple[int, ...]) -> Floats:
    return probe.expected[..., list(order)]


CAUSE = Cause(
    "image.channel-order", "The channels are exchanged", "mode", alternatives,
    "Convert to RGB once, where the file is read (OpenCV reads BGR).", __doc__ or "",
)  # fmt: skip
