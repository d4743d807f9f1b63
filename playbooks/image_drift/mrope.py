"""image.mrope: the positions (t, h, w) of image tokens are wrong, so that the model cannot place what it sees.

How it is told apart: the positions are computed again from token ids and grids, and compared exactly. After a picture the next text
position advances by its longer side, not by its tokens. A prompt of text only is right by design.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from playbooks.case import Case
from playbooks.check import Check, Result, passed, skipped
from playbooks.document import Remedy
from playbooks.finding import finding, subject
from playbooks.image_drift.placeholder_mismatch import grids_of
from playbooks.image_drift.probe import Probe, probes
from runtime.images import mrope_positions

ID = "image.mrope"
FAMILIES = ("qwen", "glm")  # whose image tokens have three positions


def test(case: Case) -> Result:
    known = [one for one in probes(case) if {"input_ids", "position_ids"} <= set(one.extra) and one.image_token is not None]
    held = [(one, *pair) for one in known if one.recipe.family in FAMILIES and (pair := _of_one(one)) is not None]
    if not held:
        return skipped("input_ids [T] and position_ids [3, T] of one prompt in the dump (qwen, glm), and config.json in the model folder")
    for one, ids, seen in held:
        try:
            wanted = mrope_positions(ids, grids_of(one), int(one.image_token or 0), one.recipe.merge)
        except ValueError as error:
            return skipped(f"as many placeholders as features, to compute positions from: {error}")
        if seen.shape != wanted.shape or (seen != wanted).any():
            wrong = int((seen != wanted).any(0).sum()) if seen.shape == wanted.shape else wanted.shape[1]
            said = f"{wrong} of {wanted.shape[1]} tokens of {one.name!r} have wrong positions: up to {seen.max()}, not {wanted.max()}."
            if (seen == seen[:1]).all():
                said += " All three axes count alike: plain positions were used."
            made = finding(
                case, ID, "error", subject("image", one.name), "Positions of image tokens are wrong", said, 0.97, "established",
                evidence=(case.derived("tokens with wrong positions", wrong, 0, "tokens", kind="tensor"),),
                remedy=(Remedy(text="Compute positions from every picture's own grid, and hand them to each chunk.", risk="low"),),
            )  # fmt: skip
            return Result("fail", said, wrong, 0, "tokens", (made,))
    return passed("all positions are those of the reference")


def _of_one(probe: Probe) -> tuple[NDArray[np.int64], NDArray[Any]] | None:
    """input_ids [T] and positions [3, T] of a single prompt; None for other shapes. transformers' four rows begin with the text's."""
    ids, seen = probe.extra["input_ids"], probe.extra["position_ids"]
    if ids.ndim == 2 and len(ids) == 1:
        ids = ids[0]
    if seen.ndim == 3 and seen.shape[1] == 1:
        seen = seen[:, 0]
    if ids.ndim != 1 or seen.ndim != 2 or len(seen) not in (3, 4) or not ids.size or not seen.size:
        return None
    return ids.astype(np.int64), seen[-3:]


CHECK = Check(ID, "Positions of image tokens", mandatory=False, cost=6, test=test, page=__doc__ or "")
