"""From quantised values and their scales to float32."""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.stored import Kind

# e2m1 of OCP Microscaling Formats 1.0, table 5.3.3: sign, two exponent bits, one mantissa bit.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = torch.tensor([*_E2M1, *(-value for value in _E2M1)])


def decode(kind: Kind, values: Tensor, scales: Tensor, unit: tuple[int, int], first: int = 0, column: int = 0) -> Tensor:
    """Stored values [rows, ..., n] of a weight, from row `first` and column `column` of it on, with the scales of the whole -> float32.

    The products are exact in float32: at most 8 bits of a value times 8 of a scale. Formats: `runtime.arch.QuantSpec`.
    """
    if kind == "fp8_block":
        return _blocks(values, scales, unit, first, column)
    own = scales[first : first + values.shape[0]]
    wide = _nibbles(values) if kind == "mxfp4" else _int4(values)
    start = column // unit[1]
    own = own[..., start : start + wide.shape[-1] // unit[1]]
    return _grouped(wide, _e8m0(own) if kind == "mxfp4" else own.float(), unit[1])


def _blocks(values: Tensor, scales: Tensor, unit: tuple[int, int], first: int, column: int) -> Tensor:
    """values [rows, columns] float8; a scale for each `unit` (rows, columns) of the weight."""
    rows, columns = values.shape
    of_row = torch.arange(first, first + rows) // unit[0]
    of_column = torch.arange(column, column + columns) // unit[1]
    scales = _e8m0(scales) if scales.dtype == torch.uint8 else scales.float()
    return values.float() * scales.index_select(0, of_row).index_select(1, of_column)


def _nibbles(packed: Tensor) -> Tensor:
    """[..., n] bytes -> [..., 2 n] e2m1 values, the low nibble first."""
    return E2M1[torch.stack((packed & 15, packed >> 4), -1).flatten(-2).int()]


def _int4(packed: Tensor) -> Tensor:
    """[..., n] int32 -> [..., 8 n], the lowest four bits first, each less 8."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return ((packed.unsqueeze(-1) >> shifts) & 15).flatten(-2).float() - 8


def _e8m0(exponents: Tensor) -> Tensor:
    """Bytes e -> 2 ** (e - 127); 255 means not a number."""
    powers = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents.int() - 127)
    return powers.masked_fill(exponents == 255, torch.nan)


def _grouped(values: Tensor, scales: Tensor, group: int) -> Tensor:
    return (torch.unflatten(values, -1, (-1, group)) * scales.unsqueeze(-1)).flatten(-2)
