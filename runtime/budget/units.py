"""Sizes, rates and counts as people write them."""

from __future__ import annotations

import re

from traces.errors import UsageError

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SIZE = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*([KMGTP]?)(i?)(B|b)?(/s)?\s*$", re.IGNORECASE)
_COUNT = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*([kKmM]?)(i?)\s*$")


def parse_size(text: str) -> int:
    """Bytes: 141GiB is 141 * 2**30, 80GB is 80 * 10**9, 1024 is 1024. Raises UsageError."""
    return int(_amount(text, rate=False))


def parse_rate(text: str) -> float:
    """Bytes per second: 900GB/s, 4.8TB/s; a small b is bits, 400Gb/s is 50 * 10**9. Raises UsageError."""
    return _amount(text, rate=True)


def parse_count(text: str) -> int:
    """A count of tokens: 131072, 128k and 1M are powers of two (128 * 1024, 2**20), as contexts are. Raises UsageError."""
    found = _COUNT.match(text)
    if found is None or float(found.group(1)) <= 0:
        raise UsageError(f"{text!r} is no number of tokens", "write 131072, 128k or 1M")
    return int(float(found.group(1)) * 1024 ** {"": 0, "k": 1, "m": 2}[found.group(2).lower()])


def _amount(text: str, rate: bool) -> float:
    found = _SIZE.match(text)
    kind = "rate" if rate else "size"
    example = "write 900GB/s, 4.8TB/s or 400Gb/s" if rate else "write 141GiB, 80GB or a number of bytes"
    if found is None or (found.group(5) and not rate):
        raise UsageError(f"{text!r} is no {kind}", example)
    number, power, binary, unit = float(found.group(1)), _POWERS[found.group(2).upper()], bool(found.group(3)), found.group(4)
    if number <= 0:
        raise UsageError(f"the {kind} {text!r} is not positive", example)
    if unit == "b":
        if not rate:
            raise UsageError(f"{text!r} is in bits", example)
        number /= 8
    return float(number * (1024 if binary else 1000) ** power)


def human(nbytes: float | None) -> str:
    """A size for reading, in binary units: 17.4 GiB."""
    if nbytes is None:
        return "unknown"
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
