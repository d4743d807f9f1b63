"""What a cause of image-drift is: a stage, and the other ways in which it is known to be done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playbooks.image_drift.probe import Probe
from playbooks.image_drift.way import Alternative


@dataclass(frozen=True, slots=True)
class Cause:
    """`alternatives(probe, all probes of the run)` are tried one by one; the one that leaves least of the drift is the explanation."""

    id: str
    title: str
    stage: str
    alternatives: Callable[[Probe, Sequence[Probe]], list[Alternative]]
    remedy: str
    page: str
