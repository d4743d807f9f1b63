"""image.cross-request-cache: the tensor is another picture's.

How it is told apart: of the pictures in this comparison, another one explains the tensor without rest. With one picture only, this
cannot be established: give both, each with its dump.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Floats, Probe
from playbooks.image_drift.way import Alternative


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    return [
        Alternative(f"exchanged for another request's picture ({other.name!r})", other.reference[1], partial(_expected, other))
        for other in others
        if other is not probe and other.data != probe.data
    ]


def _expected(probe: Probe) -> Floats:
    return probe.expected


CAUSE = Cause(
    "image.cross-request-cache", "Another request's picture", "cache", alternatives,
    "Key the cache with a full-width hash of the pixels and of the processor's arguments, at every placeholder.", __doc__ or "",
)  # fmt: skip
