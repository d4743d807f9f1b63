"""Photograph-like pictures made by a seed, and files of them: 1/f noise in correlated colours, edges, text-like lines, a saturated patch;
many sizes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

SIZES = ((401, 607), (523, 390), (330, 760), (550, 550), (631, 418), (466, 507))


def photograph(seed: int) -> Image.Image:
    """RGB of one of six sizes; no symmetry, and a spectrum like a photograph's."""
    rng = np.random.default_rng(seed)
    height, width = SIZES[(seed * 5 + 1) % len(SIZES)]
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    weight = 1 / np.maximum(np.hypot(fy, fx), 1 / max(height, width)) ** 1.1
    planes = []
    for _ in range(3):
        wave = np.fft.irfft2(weight * np.exp(2j * np.pi * rng.random(weight.shape)), (height, width))
        planes.append(wave / wave.std())
    mixed = np.stack(planes, -1) @ np.array([[1.0, 0.8, 0.6], [0.2, 0.5, 0.3], [-0.3, 0.1, 0.6]])
    image = Image.fromarray(np.clip(120 + 45 * mixed + np.array([12, 0, -14]), 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.rectangle((width // 9, height // 8, width // 3, height // 4), fill=(230, 25, 40))
    draw.ellipse((width // 2, height // 2, width // 2 + width // 5, height // 2 + height // 4), fill=(30, 60, 220))
    for line in range(8):
        y = height * 3 // 4 + 6 * line
        draw.line((width // 12, y, width // 12 + int(rng.integers(width // 4, width // 2)), y), fill=(10, 10, 10), width=1 + line % 3)
    draw.text((width // 2, height // 7), f"picture {seed}: 0123456789", fill=(250, 240, 60))
    return image


def jpeg(image: Image.Image, **options: Any) -> bytes:
    """A file as cameras write it: quality 90, colours at half size."""
    return _file(image, "JPEG", **{"quality": 90, "subsampling": 2, **options})


def png(image: Image.Image, **options: Any) -> bytes:
    """A file without loss."""
    return _file(image, "PNG", **options)


def _file(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
