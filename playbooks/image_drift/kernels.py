"""Resampling without antialias, as torch's interpolate and OpenCV do it: arrays in, arrays out.

Keys' cubic convolution with a = -0.75 (both libraries); PIL's filters, with a = -0.5, widen with the reduction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float64]
Kernel = Callable[[Floats], Floats]


def _cubic(x: Floats, a: float = -0.75) -> Floats:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    weights: Floats = np.where(x <= 1, near, np.where(x < 2, far, 0.0))
    return weights


def _linear(x: Floats) -> Floats:
    weights: Floats = np.clip(1 - np.abs(x), 0, None)
    return weights


def bicubic(flat: Image.Image, rows: int, columns: int) -> Floats:
    return _both(flat, rows, columns, _cubic, 2, False)


def bilinear(flat: Image.Image, rows: int, columns: int) -> Floats:
    return _both(flat, rows, columns, _linear, 1, False)


def bilinear_corners(flat: Image.Image, rows: int, columns: int) -> Floats:
    """Corners aligned."""
    return _both(flat, rows, columns, _linear, 1, True)


def bicubic_corners(flat: Image.Image, rows: int, columns: int) -> Floats:
    """Corners aligned."""
    return _both(flat, rows, columns, _cubic, 2, True)


def nearest(flat: Image.Image, rows: int, columns: int) -> Floats:
    """The sample at the upper left of each target pixel: torch's `nearest`, OpenCV's INTER_NEAREST."""
    pixels = np.asarray(flat, np.float64)
    y = np.minimum((np.arange(rows) * pixels.shape[0] / rows).astype(int), pixels.shape[0] - 1)
    x = np.minimum((np.arange(columns) * pixels.shape[1] / columns).astype(int), pixels.shape[1] - 1)
    picked: Floats = pixels[y][:, x]
    return picked


def area(flat: Image.Image, rows: int, columns: int) -> Floats:
    """Means over whole source pixels that a target pixel touches: torch's `area`, which is its adaptive pooling."""
    pixels = _pooled(np.asarray(flat, np.float64), rows)
    means: Floats = np.rint(_pooled(pixels.transpose(1, 0, 2), columns).transpose(1, 0, 2))
    return means


def _pooled(pixels: Floats, size: int) -> Floats:
    sums = np.concatenate((np.zeros_like(pixels[:1]), np.cumsum(pixels, 0)))
    low = np.arange(size) * pixels.shape[0] // size
    high = -(-(np.arange(size) + 1) * pixels.shape[0] // size)
    means: Floats = (sums[high] - sums[low]) / (high - low)[:, None, None]
    return means


def _both(flat: Image.Image, rows: int, columns: int, kernel: Kernel, reach: int, corners: bool) -> Floats:
    pixels = _axis(np.asarray(flat, np.float64), rows, kernel, reach, corners)
    pixels = _axis(pixels.transpose(1, 0, 2), columns, kernel, reach, corners).transpose(1, 0, 2)
    levels: Floats = np.clip(np.rint(pixels), 0, 255)
    return levels


def _axis(pixels: Floats, size: int, kernel: Kernel, reach: int, corners: bool) -> Floats:
    """[n, m, 3] -> [size, m, 3]."""
    length = pixels.shape[0]
    if corners:
        centre = np.arange(size) * ((length - 1) / max(size - 1, 1))
    else:
        centre = (np.arange(size) + 0.5) * (length / size) - 0.5
    low = np.floor(centre).astype(int)
    out = np.zeros((size, *pixels.shape[1:]))
    for step in range(1 - reach, reach + 1):
        index = low + step
        out += kernel(centre - index)[:, None, None] * pixels[np.clip(index, 0, length - 1)]
    return out
