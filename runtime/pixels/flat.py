"""A decoded picture to upright 8-bit RGB: orientation, bit depth, transparency, mode."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

ORIENTATION = 0x0112  # the EXIF tag
WHITE = (255, 255, 255, 255)


def upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF tag says."""
    return ImageOps.exif_transpose(image)


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) that it has then."""
    turned = image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)
    return (image.width, image.height) if turned else (image.height, image.width)


def flatten(image: Image.Image) -> Image.Image:
    """RGB with transparency laid on white (transformers' image_transforms.convert_to_rgb).

    In one thing we leave the reference: PIL's conversion of 16-bit grey to RGB clamps at 255, so that nearly every pixel turns white.
    We scale to 8 bits first.
    """
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = _eight_bits(image)
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image)
    return image.convert("RGB")


def transparent(image: Image.Image) -> bool:
    """Whether something behind it would be seen."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return False
    return image.convert("RGBA").getchannel("A").getextrema() != (255, 255)


def facts(image: Image.Image) -> dict[str, Any]:
    """What a file said before anything was converted: format, mode, size, orientation tag, whether it has transparency."""
    return {
        "format": image.format or "",
        "mode": image.mode,
        "width": image.width,
        "height": image.height,
        "orientation": int(image.getexif().get(ORIENTATION, 1) or 1),
        "transparency": "A" in image.getbands() or image.info.get("transparency") is not None,
    }


def _eight_bits(image: Image.Image) -> Image.Image:
    """65535 becomes 255. Values that are no 16-bit range (32-bit integers, floats) are stretched from their own."""
    values: NDArray[np.float64] = np.asarray(image, dtype=np.float64)
    low, high = 0.0, 65535.0
    if values.min() < low or values.max() > high or image.mode == "F":
        low, high = float(values.min()), float(values.max())
    scaled = (values - low) * (255.0 / max(high - low, 1e-12))
    return Image.fromarray(np.rint(scaled).astype(np.uint8), "L")
