"""image.exif: the orientation that a phone writes beside the pixels was not applied, or another turn or mirror was.

How it is told apart: the picture, turned or mirrored, is the observed one; nothing else about it changed. With a tag other than 1 the
untouched picture is what came. A picture that is symmetric cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from PIL import Image

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Floats, Probe
from playbooks.image_drift.way import Alternative, same, way
from runtime.pixels.flat import flatten, upright

_TURNS = (("turned by 180 degrees", 2), ("turned by 90 degrees anticlockwise", 1), ("turned by 90 degrees clockwise", 3))


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    found: list[Alternative] = []
    if probe.facts["orientation"] != 1:
        found += way(probe, f"used as stored: its EXIF orientation {probe.facts['orientation']} was not applied", turn=lambda image: image)
    found.append(same(probe, "mirrored left to right", lambda: probe.expected[:, ::-1]))
    found.append(same(probe, "turned upside down (mirrored top to bottom)", lambda: probe.expected[::-1]))
    _, (one, height, width) = probe.reference
    for words, times in _TURNS:
        grid = (one, height, width) if times == 2 else (one, width, height)
        found.append(Alternative(words, grid, partial(_quarters, probe, times)))
    found.append(Alternative("transposed (rows and columns exchanged)", (one, width, height), lambda: probe.expected.transpose(1, 0, 2)))
    found += way(probe, "transposed before it was resized", turn=_transposed)
    return found


def _quarters(probe: Probe, times: int) -> Floats:
    return np.rot90(probe.expected, times)


def _transposed(image: Image.Image) -> Image.Image:
    return flatten(upright(image)).transpose(Image.Transpose.TRANSPOSE)


CAUSE = Cause(
    "image.exif", "The picture is turned or mirrored", "orientation", alternatives,
    "Apply the EXIF orientation right after decoding, on every decode path.", __doc__ or "",
)  # fmt: skip
