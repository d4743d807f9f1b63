"""image.pixel-budget: another smallest or largest area was in force, so that a picture has more or fewer tokens.

How it is told apart: the grid is the one of the same rule with another budget. A class default, no limit and a limit that was dropped
are named; an operator may have lowered the cap on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Probe
from playbooks.image_drift.way import Alternative, way
from runtime.images import ImageSettings, target_size

UNLIMITED = 1 << 40
# Class defaults and caps of published configurations and engines.
CAPS = (50176, 100352, 200704, 401408, 602112, 802816, 1003520, 1204224, 1605632, 2408448, 3211264, 12845056, 16777216)


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    recipe = probe.recipe
    if recipe.family == "pixtral":
        return [
            one
            for side in (256, 384, 512, 768, 1024, 1540, 2048)
            for one in _with(probe, f"limited to {side} pixels a side", size=(side, side))
        ]
    if recipe.family == "kimi":
        return [one for most in (1024, 4096, 16384, 65536) for one in _with(probe, f"limited to {most} patches", max_patches=most)]
    if recipe.family not in ("qwen", "glm"):
        return []
    default = ImageSettings.of({"image_processor_type": "Qwen2VLImageProcessor" if recipe.family == "qwen" else "Glm4vImageProcessor"})
    found = _with(
        probe, f"kept within the class default of {default.min_pixels} to {default.max_pixels} pixels",
        min_pixels=default.min_pixels, max_pixels=default.max_pixels,
    )  # fmt: skip
    found += _with(probe, "resized without a largest area", max_pixels=UNLIMITED)
    found += _with(probe, "resized without a smallest area", min_pixels=1)
    for cap in sorted({*CAPS, *(recipe.max_pixels * 2**step for step in (1, 2)), *(recipe.max_pixels // 2**step for step in (1, 2, 3, 4))}):
        found += _with(
            probe, f"limited to {cap} pixels instead of {recipe.max_pixels}", max_pixels=cap, min_pixels=min(cap, recipe.min_pixels)
        )
        if cap <= recipe.max_pixels:
            found += _with(probe, f"enlarged to {cap} pixels instead of {recipe.min_pixels}", min_pixels=cap)
    return found


def _with(probe: Probe, words: str, **changes: Any) -> list[Alternative]:
    other = replace(probe.recipe, **changes)
    made = way(probe, words, size=lambda height, width, recipe: target_size(height, width, other))
    return [one for one in made if one.grid != probe.reference[1]]


CAUSE = Cause(
    "image.pixel-budget", "Another pixel budget", "resize", alternatives,
    "Give the limits in one place (the checkpoint's size, or mm_processor_kwargs), and look for a warning that says they were dropped.",
    __doc__ or "",
)  # fmt: skip
