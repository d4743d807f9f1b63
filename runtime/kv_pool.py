"""What one layer caches of every token, in pages: in the compute dtype, or in float8 with scales."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 64  # values that share a scale, where the width is a multiple of it; else one scale a row
FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0  # of float8_e4m3fn
SMALLEST = 2.0**-100  # of a scale: rows of zeros stay zeros
Pages = Tensor | slice


@dataclass(frozen=True, slots=True)
class KvPool:
    """values [rows, blocks, block_size, width]. Float8 values are kept as bytes, with a float32 scale for every group of a row:
    the largest value of a group becomes the largest of the format, as it is written."""

    values: Tensor
    scales: Tensor | None  # [rows, blocks, block_size, groups]
    dtype: torch.dtype  # of what is written and read

    @classmethod
    def create(
        cls, shape: tuple[int, int], blocks: int, block_size: int, dtype: torch.dtype, device: torch.device, float8: bool = False
    ) -> KvPool:
        rows, width = shape
        size = (rows, blocks, block_size, width)
        # Zeros, not empty: the padding of a batched gather is masked, but NaN x 0 would still be NaN.
        if not float8:
            return cls(torch.zeros(size, dtype=dtype, device=device), None, dtype)
        scales = torch.zeros((rows, blocks, block_size, groups_of(width)), device=device)
        return cls(torch.zeros(size, dtype=torch.uint8, device=device), scales, dtype)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (self.scales.nbytes if self.scales is not None else 0)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return self.nbytes // (self.values.shape[1] * self.values.shape[2])

    def write(self, slots: Tensor, rows: Tensor) -> None:
        """rows [rows, T, width] to positions [T] of the pool of blocks * block_size."""
        if self.scales is None:
            self.values.flatten(1, 2).index_copy_(1, slots, rows)
            return
        grouped = torch.unflatten(rows.float(), -1, (self.scales.shape[-1], -1))
        scales = (grouped.abs().amax(-1) / LARGEST).clamp_(min=SMALLEST)
        values = (grouped / scales.unsqueeze(-1)).clamp_(-LARGEST, LARGEST).to(FLOAT8).view(torch.uint8).flatten(-2)
        self.values.flatten(1, 2).index_copy_(1, slots, values)
        self.scales.flatten(1, 2).index_copy_(1, slots, scales)

    def read(self, pages: Pages, context: int, count: int) -> Tensor:
        """The cached context of `count` sequences: [rows, count, context, width]. A run of blocks in the compute dtype is read in place."""
        values = _paged(self.values, pages, context, count)
        if self.scales is None:
            return values
        scales = _paged(self.scales, pages, context, count)
        grouped = torch.unflatten(values.contiguous().view(FLOAT8).float(), -1, (scales.shape[-1], -1))
        return (grouped * scales.unsqueeze(-1)).flatten(-2).to(self.dtype)


def groups_of(width: int) -> int:
    """Scales of a row of `width` values."""
    return width // GROUP if width and width % GROUP == 0 else 1


def cached_bytes(shape: tuple[int, int], item: int, float8: bool) -> int:
    """Bytes of a token in one layer; `item`: bytes of a value of the compute dtype."""
    rows, width = shape
    return rows * (width + 4 * groups_of(width)) if float8 else math.prod(shape) * item


def _paged(pool: Tensor, pages: Pages, context: int, count: int) -> Tensor:
    # index_select is several times faster than indexing on the CPU.
    held = pool[:, pages] if isinstance(pages, slice) else pool.index_select(1, pages)
    return held.view(pool.shape[0], count, -1, pool.shape[3])[:, :, :context]
