"""How one row of a table lies in bytes.

A record is a multiple of 8 bytes, little endian:

    u32, u32          size in 8-byte words, table number
    8-byte columns    i64, f64
    4-byte columns    i32, then the byte length of every str, json and list column
    1-byte columns    bool
    blob              the bytes of str, json and list columns, in column order, zero padded
    u8 mark           0xA5, written last: a record without it was torn by the death of its process

Null is a value no measurement has: the smallest integer, one NaN of many, length 2^32 - 1, 2 for a bool. A str[] is its strings,
each ended by a zero byte. Everything fixed can be read by numpy at once, so that a rank copies bytes and the collector decodes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from traces.table import Column, Table

MARK = 0xA5
NULL_I64 = -(1 << 63)
NULL_I32 = -(1 << 31)
NULL_F64_BITS = 0x7FF8_5742_5742_5742
NULL_F64: float = struct.unpack("<d", struct.pack("<Q", NULL_F64_BITS))[0]
NULL_LENGTH = 0xFFFF_FFFF
NULL_BOOL = 2

_FIXED = {"i64": ("q", "<i8"), "f64": ("d", "<f8"), "i32": ("i", "<i4"), "bool": ("B", "u1")}
_ITEM = {"u32[]": "<u4", "i64[]": "<i8", "f64[]": "<f8"}


@dataclass(frozen=True, slots=True)
class Layout:
    """The byte layout of a table. `order` lists columns as they lie; `fixed` is the size up to the blob, mark not included."""

    number: int
    order: tuple[Column, ...]
    variable: tuple[Column, ...]
    format: str
    fixed: int
    dtype: np.dtype[Any]

    def packer(self, words: int) -> struct.Struct:
        """Struct of a whole record of `words` 8-byte words: words, number, fixed columns, [blob], mark."""
        blob = words * 8 - self.fixed - 1
        return struct.Struct(f"{self.format}{blob}sB" if self.variable else f"{self.format}{blob}xB")


def item_type(column: Column) -> str | None:
    """numpy type of the items of a numeric list column, else None."""
    return _ITEM.get(column.base)


def is_variable(column: Column) -> bool:
    return column.base not in _FIXED


@cache
def layout_of(table: Table) -> Layout:
    """The layout follows from the columns alone."""

    def width(column: Column) -> int:
        return 4 if is_variable(column) else np.dtype(_FIXED[column.base][1]).itemsize

    order = tuple(sorted(table.columns, key=width, reverse=True))
    format_, fields, offset = "<II", [("\0header", "<u8", 0)], 8
    for column in order:
        code, kind = ("I", "<u4") if is_variable(column) else _FIXED[column.base]
        format_ += code
        fields.append((column.name, kind, offset))
        offset += np.dtype(kind).itemsize
    names, kinds, offsets = zip(*fields, strict=True)
    dtype = np.dtype({"names": names, "formats": kinds, "offsets": offsets, "itemsize": (offset + 7) & -8})
    variable = tuple(column for column in table.columns if is_variable(column))
    return Layout(table.number, order, variable, format_, offset, dtype)
