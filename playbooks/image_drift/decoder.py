"""image.decoder: another JPEG decoder, or a JPEG made anew: chroma is interpolated differently, or lost.

How it is told apart: only JPEG files; lightness stays within a level while colours move (GPU decoders default to the nearest chroma
sample on 4:2:0); a second compression or a decode at half size leaves its own pattern, which is computed and compared.
Another build of the same library differs by one or two levels, which is harmless.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from PIL import Image

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Probe
from playbooks.image_drift.way import Alternative, way
from runtime.images import ImageSettings, target_size
from runtime.pixels.flat import flatten, upright

COARSE, AROUND = range(10, 99, 4), 3  # qualities tried first; and how far around the best two of them


def nearest_chroma(data: bytes) -> Image.Image:
    """A 4:2:0 JPEG with each chroma sample repeated. At half size libjpeg leaves the chroma planes as they are stored.

    Colours by JFIF's own formula, rounded as every decoder does; PIL's conversion of YCbCr cuts off, which is half a level on average.
    """
    full = Image.open(io.BytesIO(data))
    width, height = full.size
    full.draft("YCbCr", full.size)
    luma = np.asarray(full.convert("YCbCr"), np.float32)[..., 0]
    chroma = np.asarray(_reduced(data, "YCbCr"), np.float32)[..., 1:].repeat(2, 0).repeat(2, 1)[:height, :width] - 128
    blue, red = chroma[..., 0], chroma[..., 1]
    levels = np.stack((luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue), -1)
    return Image.fromarray(np.clip(np.rint(levels), 0, 255).astype(np.uint8))


def half_size(data: bytes) -> Image.Image:
    return _reduced(data, "RGB")


def _reduced(data: bytes, mode: str) -> Image.Image:
    """Decoded at half size. PIL reduces only to what is not below the size asked for, so an odd side is halved downwards."""
    image = Image.open(io.BytesIO(data))
    image.draft(mode, (image.width // 2, image.height // 2))
    return image.convert(mode)


def again(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    flatten(upright(image)).save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    found: list[Alternative] = []
    if probe.facts["format"] == "JPEG" and probe.facts["mode"] == "RGB" and min(probe.image.size) > 1:
        tag = probe.facts["orientation"]
        found += way(probe, "decoded with the nearest chroma sample instead of interpolated chroma",
                     image=lambda: _tagged(nearest_chroma(probe.data), tag))  # fmt: skip
        found += way(probe, "decoded at half size and enlarged", image=lambda: _tagged(half_size(probe.data), tag), size=_sized(probe))
    quality = _quality(probe)
    if quality is not None:
        found += _again(probe, quality)
    return found


def _again(probe: Probe, quality: int) -> list[Alternative]:
    return way(probe, f"compressed again as JPEG of quality {quality}", image=partial(again, probe.image, quality))


def _quality(probe: Probe) -> int | None:
    """The one whose compression leaves least; it shows only near itself, so that the range is searched first and its best two after it."""
    observed = probe.seen(probe.reference[1])
    if observed is None:
        return None
    left: dict[int, float] = {}

    def tried(quality: int) -> None:
        for one in _again(probe, quality) if quality not in left else []:
            left[quality] = float(np.mean(np.square(observed - one.plane(), dtype=np.float64)))

    for quality in COARSE:
        tried(quality)
    for middle in sorted(left, key=left.__getitem__)[:2]:
        for quality in range(middle - AROUND, min(middle + AROUND, 100) + 1):
            tried(quality)
    return min(left, key=left.__getitem__, default=None)


def _tagged(image: Image.Image, tag: int) -> Image.Image:
    image.getexif()[0x0112] = tag
    return image


def _sized(probe: Probe) -> Callable[[int, int, ImageSettings], tuple[int, int]]:
    """The target follows the file's own size, not the reduced one."""
    turned = upright(probe.image)
    return lambda height, width, recipe: target_size(turned.height, turned.width, recipe)


CAUSE = Cause(
    "image.decoder", "Another decoder, or a second compression", "decode", alternatives,
    "Decode with libjpeg's interpolated chroma (PIL), and hand over the client's bytes without compressing them again.", __doc__ or "",
)  # fmt: skip
