"""What the stored values say: not finite, rows or ends of nothing but zeros, and spread unlike their siblings'."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from runtime.inventory.names import SCALES, take_apart
from runtime.verification.document import Problem
from runtime.verification.scan import Tensor

SIBLINGS = 8  # fewer are no distribution
FACTOR = 4.0  # times the median of its siblings; a wrong power-of-two scale is 2 or more, layers of one model differ by less than 2
DEVIATIONS = 10.0  # and so many median absolute deviations
MAY_BE_ZERO = ("embed", "head")  # rows of tokens that do not exist
Floats = NDArray[np.float32]


def _e4m3() -> Floats:
    """The 256 values of F8_E4M3 (OCP 8-bit floating point, 5.1): bias 7, no infinity, 0x7f and 0xff are NaN."""
    code = np.arange(256)
    sign, exponent, fraction = np.where(code & 0x80, -1.0, 1.0), (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    return np.where(code & 0x7F == 0x7F, np.nan, sign * value).astype(np.float32)


_E4M3 = _e4m3()
_E8M0 = np.append(2.0 ** (np.arange(255) - 127.0), np.nan).astype(np.float32)


def decode(dtype: str, piece: memoryview) -> Floats | None:
    """Values as float32, or None for a dtype that holds packed values or integers."""
    raw = np.frombuffer(piece, np.uint8)
    if dtype == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F32", "F16", "F64"):
        return raw.view({"F32": np.float32, "F16": np.float16, "F64": np.float64}[dtype]).astype(np.float32, copy=False)
    if dtype == "F8_E4M3":
        return _E4M3[raw]
    if dtype == "F8_E5M2":  # the upper byte of a float16
        return (raw.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    return _E8M0[raw] if dtype == "F8_E8M0" else None


@dataclass(slots=True)
class Siblings:
    """Root mean squares of tensors that play the same part in other layers and experts. Filled by several threads."""

    spreads: dict[tuple[str, str, tuple[int, ...]], list[tuple[str, str, float]]] = field(default_factory=lambda: defaultdict(list))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, tensor: Tensor, rms: float) -> None:
        part = re.sub(r"\.\d+(?=\.)", ".*", take_apart(tensor.name).template)
        with self.lock:
            self.spreads[(part, tensor.entry.dtype, tensor.entry.shape)].append((tensor.file, tensor.name, rms))

    def outliers(self) -> list[Problem]:
        """Tensors whose values are spread over a factor of `FACTOR` more or less than their siblings'."""
        problems = []
        for members in self.spreads.values():
            known = [member for member in members if member[2] > 0]
            if len(known) < SIBLINGS:
                continue
            logs = np.log2([rms for _, _, rms in known])
            middle = float(np.median(logs))
            deviation = float(np.median(np.abs(logs - middle)))
            limit = max(np.log2(FACTOR), DEVIATIONS * deviation)
            for (file, name, rms), log in zip(known, logs, strict=True):
                if abs(log - middle) > limit:
                    side = "above" if log > middle else "below"
                    times = f"{2 ** abs(log - middle):.1f} times {side} the median of {len(known)} siblings"
                    problems.append(Problem(file, name, "outlier", f"root mean square {rms:.3g}, {times}"))
        return problems


class Values:
    """Watches one tensor's values."""

    def __init__(self, tensor: Tensor, siblings: Siblings) -> None:
        self._tensor, self._siblings = tensor, siblings
        self._width = tensor.entry.shape[-1] if tensor.entry.shape else 1
        self._bad = self._count = self._rows = self._zero_rows = self._tail = 0
        self._squares = 0.0

    def feed(self, piece: memoryview) -> None:
        values = decode(self._tensor.entry.dtype, piece)
        if values is None:
            values = np.frombuffer(piece, np.uint8).astype(np.float32)
        finite = np.isfinite(values)
        self._bad += int(values.size - np.count_nonzero(finite))
        self._count += values.size
        self._squares += float(np.square(np.where(finite, values, 0), dtype=np.float64).sum())
        self._count_zero_rows(values)

    def _count_zero_rows(self, values: Floats) -> None:
        per_row = max(1, values.size // max(1, -(-values.size // max(1, self._width))))
        zero = ~values.reshape(-1, per_row).any(axis=1)
        self._rows += zero.size
        self._zero_rows += int(zero.sum())
        filled = np.flatnonzero(~zero)
        self._tail = self._tail + zero.size if not filled.size else int(zero.size - 1 - filled[-1])

    def done(self) -> list[Problem]:
        tensor, problems = self._tensor, []
        if self._bad:
            problems.append(self._problem("non-finite", f"{self._bad} of {self._count} values are NaN or infinite"))
        if len(tensor.entry.shape) >= 2 and take_apart(tensor.name).kind not in MAY_BE_ZERO:
            if self._zero_rows == self._rows:
                problems.append(self._problem("zeros", "every value is zero"))
            elif self._tail:
                problems.append(self._problem("zeros", f"its last {self._tail} of {self._rows} rows are zeros"))
            elif self._zero_rows:
                problems.append(self._problem("zeros", f"{self._zero_rows} of {self._rows} rows are zeros"))
        if len(tensor.entry.shape) >= 2 and not SCALES.search(tensor.name) and self._count:
            self._siblings.add(tensor, float(np.sqrt(self._squares / self._count)))
        return problems

    def _problem(self, kind: str, detail: str) -> Problem:
        return Problem(self._tensor.file, self._tensor.name, "non-finite" if kind == "non-finite" else "zeros", detail)
