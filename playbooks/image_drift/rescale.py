"""image.rescale: the factor 1/255 was applied twice or not at all, or the normalisation was applied twice.

How it is told apart: an affine fit leaves nothing, and its slope is 1/255, 255, or one over the deviation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Floats, Probe
from playbooks.image_drift.way import Alternative, same


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    scale = np.float32(probe.recipe.scale)
    found = [
        same(probe, "rescaled twice", lambda: probe.levels(_normalised(probe, probe.expected * scale * scale))),
        same(probe, "not rescaled by 1/255", lambda: probe.levels(_normalised(probe, probe.expected))),
        same(
            probe, "rescaled to -1 .. 1 before it was normalised", lambda: probe.levels(_normalised(probe, probe.expected * 2 * scale - 1))
        ),
    ]
    if probe.recipe.normalise:
        found.append(same(probe, "normalised twice", lambda: probe.levels(_normalised(probe, probe.values(probe.expected)))))
    return found


def _normalised(probe: Probe, values: Floats) -> Floats:
    recipe = probe.recipe
    if not recipe.normalise:
        return values
    mean, std = (np.array(part, np.float32) for part in (recipe.mean, recipe.std))
    scaled: Floats = np.divide(values - mean, std, dtype=np.float32)
    return scaled


CAUSE = Cause(
    "image.rescale", "Rescaled or normalised a wrong number of times", "rescale", alternatives,
    "Let one place own the factor 1/255 and the normalisation; hand over bytes to it.", __doc__ or "",
)  # fmt: skip
