"""image.dtype-path: a number format on the way loses the values: bits read as another format, integers, eight-bit floats.

How it is told apart: Inf or NaN in the tensor; or the values, taken through the other format, are the observed ones. bfloat16 after
the normalisation costs 0.25 levels, and is benign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from playbooks.image_drift.cause import Cause
from playbooks.image_drift.probe import Floats, Probe
from playbooks.image_drift.way import Alternative, same


def _bits16(values: Floats) -> NDArray[np.uint16]:
    """bfloat16 bits, rounded to nearest even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def brain_as_half(values: Floats) -> Floats:
    return _bits16(values).view(np.float16).astype(np.float32)


def half_as_brain(values: Floats) -> Floats:
    return (values.astype(np.float16).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def eight_bit_float(values: Floats) -> Floats:
    """float8 e4m3: three bits of mantissa, exponents from -6."""
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(values), 1e-12))), -6)
    step = np.exp2(exponent - 3).astype(np.float32)
    rounded: Floats = (np.rint(values / step) * step).astype(np.float32)
    return rounded


def _changed(probe: Probe, change: Callable[[Floats], NDArray[Any]]) -> Floats:
    return probe.levels(change(probe.values(probe.expected)))


def alternatives(probe: Probe, others: Sequence[Probe]) -> list[Alternative]:
    ways: tuple[tuple[str, Callable[[Floats], NDArray[Any]]], ...] = (
        ("written as bfloat16 and read as float16", brain_as_half),
        ("written as float16 and read as bfloat16", half_as_brain),
        ("cut to eight-bit floats", eight_bit_float),
        ("cut to whole numbers after it was normalised", np.trunc),
        ("rounded to whole numbers after it was normalised", np.rint),
        ("cut to signed bytes after it was normalised", lambda values: np.clip(np.rint(values * 127), -128, 127) / 127),
        ("cut off below 0", lambda values: np.maximum(values, 0)),
        ("cut to 0 .. 1 after it was normalised", lambda values: np.clip(values, 0, 1)),
    )
    return [same(probe, words, partial(_changed, probe, change)) for words, change in ways]


CAUSE = Cause(
    "image.dtype-path", "A number format on the way loses the values", "dtype", alternatives,
    "Keep float32 until after the normalisation, and convert values, never bits, at the device's boundary.", __doc__ or "",
)  # fmt: skip
