"""image.load-mode: the file's mode was converted to RGB in another way: alpha dropped or laid on black, 16 bits clamped, colours lost.

How it is told apart: only files of that mode can differ so, and the exchanged conversion leaves nothing of the drift. Three equal
channels of a coloured picture are a grey conversion. Measured trap: PIL clamps 16-bit grey at 255, 99.6 % of it turns white.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from PIL import Image

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Floats, Probe
from playbooks.image_drift.way import Alternative, same, way
from runtime.pixels.flat import flatten

Flat = Callable[[Image.Image], Image.Image]


def _on(colour: tuple[int, int, int, int]) -> Flat:
    def flat(image: Image.Image) -> Image.Image:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, colour), image).convert("RGB")

    return flat


def _indices(image: Image.Image) -> Image.Image:
    return Image.fromarray(np.asarray(image)).convert("L").convert("RGB")


def _high_byte(image: Image.Image) -> Image.Image:
    return Image.fromarray((np.asarray(image).astype(np.uint32) & 0xFF).astype(np.uint8)).convert("RGB")


def _multiplied(image: Image.Image) -> Image.Image:
    """CMYK without a profile, as simple decoders do it: (1 - C)(1 - K)."""
    cmyk = np.asarray(image, np.float32) / 255
    return Image.fromarray(np.rint((1 - cmyk[..., :3]) * (1 - cmyk[..., 3:]) * 255).astype(np.uint8))


def _one(probe: Probe, channel: int) -> Floats:
    return np.repeat(probe.expected[..., channel : channel + 1], 3, -1)


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    mode = str(probe.facts["mode"])
    found: list[Alternative] = []
    if probe.facts["transparency"]:
        found += way(
            probe, "converted with its transparency dropped, so that hidden content shows", flat=lambda i: i.convert("RGBA").convert("RGB")
        )
        found += way(probe, "laid on black instead of white where it is transparent", flat=_on((0, 0, 0, 255)))
        found += way(probe, "laid on grey instead of white where it is transparent", flat=_on((128, 128, 128, 255)))
    if mode.startswith("I"):
        found += way(probe, "clamped from 16 bits to 255 instead of scaled, so that it turned white", flat=lambda i: i.convert("RGB"))
        found += way(probe, "cut to the low byte of its 16 bits", flat=_high_byte)
    if mode == "P":
        found += way(probe, "read as palette indices instead of colours", flat=_indices)
    if mode == "CMYK":
        found += way(probe, "converted from CMYK by (1 - C)(1 - K)", flat=_multiplied)
        found += way(
            probe, "converted from CMYK after inverting it", flat=lambda i: Image.fromarray(255 - np.asarray(i), "CMYK").convert("RGB")
        )
    found += way(probe, "converted to grey", flat=lambda i: flatten(i).convert("L").convert("RGB"))
    found.append(
        same(probe, "converted to grey by the mean of the channels", lambda: np.repeat(probe.expected.mean(-1, keepdims=True), 3, -1))
    )
    found += [same(probe, f"reduced to its {name} channel", partial(_one, probe, c)) for c, name in enumerate(("red", "green", "blue"))]
    found.append(same(probe, "inverted", lambda: 255 - probe.expected))
    return found


CAUSE = Cause(
    "image.load-mode", "The file's mode is converted in another way", "mode", alternatives,
    "Scale 16 bits to 8, lay transparency on white, convert CMYK and palettes to RGB, reject what is unknown.", __doc__ or "",
)  # fmt: skip
