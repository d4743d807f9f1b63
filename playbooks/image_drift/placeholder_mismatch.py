"""image.placeholder-mismatch: the prompt has another number of image tokens than the pictures have features.

How it is told apart: the image tokens of `input_ids` are counted against the grids, exactly. A template's separators have other ids and
are not counted.
"""

from __future__ import annotations

import numpy as np

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.finding import finding, subject
from playbooks.image_drift.probe import Probe, probes
from runtime.images import Grid
from runtime.pixels.positions import image_tokens

ID = "image.placeholder-mismatch"


def grids_of(probe: Probe) -> list[Grid]:
    """As the dump names them, all pictures of its prompt; else the one of the comparison."""
    held = probe.extra.get("image_grid_thw")
    if held is None:
        return [probe.grid or probe.reference[1]]
    return [(int(t), int(h), int(w)) for t, h, w in held.reshape(-1, 3)]


def test(case: Case) -> Result:
    known = [one for one in probes(case) if "input_ids" in one.extra and one.image_token is not None]
    if not known:
        return skipped("input_ids beside pixel_values in the dump, and config.json in the model folder")
    for one in known:
        wanted = sum(image_tokens(grid, one.recipe) for grid in grids_of(one))
        seen = int(np.count_nonzero(one.extra["input_ids"] == one.image_token))
        if seen != wanted:
            said = f"The prompt of {one.name!r} holds {seen} image tokens for {wanted} features."
            made = finding(
                case, ID, "error", subject("image", one.name), "The number of placeholders is wrong", said, 0.97, "established",
                evidence=(case.derived("image tokens in input_ids", seen, wanted, "tokens", kind="tensor"),),
                remedy=(Remedy(text="Expand the placeholder from the processor's grid, once for every picture.", risk="low"),),
            )  # fmt: skip
            return Result("fail", said, seen, wanted, "tokens", (made,))
    return passed("every prompt has as many image tokens as its pictures have features")


CHECK = Check(ID, "Placeholders and features differ in number", mandatory=False, cost=5, test=test, page=__doc__ or "")
