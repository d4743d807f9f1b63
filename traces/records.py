"""Row -> bytes in the ring: one generated function per table, because a loop over columns would cost more than the row.

The generated function reserves its place and fills it with one C call. Between the two no call, loop or allocation happens where CPython
would let another thread, a signal handler or the garbage collector in; so it needs no lock, which would cost as much as the record itself
(without a GIL there is no such guarantee, and it takes one).
A value that does not fit its column must not raise in the middle of a model's step: the row is counted as dropped with reason "invalid".
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from traces.layout import MARK, NULL_BOOL, NULL_F64, NULL_I32, NULL_I64, NULL_LENGTH, Layout, is_variable, layout_of
from traces.ring import Ring
from traces.table import Column, Table

ERRORS = (struct.error, TypeError, ValueError, AttributeError, OverflowError, KeyError, IndexError)
_CACHED_WORDS = 512
_NULLS = {"i64": NULL_I64, "i32": NULL_I32, "f64": NULL_F64, "bool": NULL_BOOL}
_ARRAY = {"u32[]": "I", "i64[]": "q", "f64[]": "d"}
_json = msgspec.json.Encoder(enc_hook=str).encode


class _Packers(dict[int, Callable[..., None]]):
    """pack_into by record size in words, made at first use."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout

    def __missing__(self, words: int) -> Callable[..., None]:
        pack = self.layout.packer(words).pack_into
        if words <= _CACHED_WORDS:
            self[words] = pack
        return pack


def record_writer(ring: Ring, table: Table) -> Callable[..., None]:
    """A function of the table's columns, in their order, that writes one record into the ring and never raises for a bad value."""
    layout = layout_of(table)
    smallest = (layout.fixed + 8) >> 3
    scope: dict[str, Any] = {
        "json": json_bytes, "texts": text_bytes, "numbers": number_bytes, "clean": _clean, "ERRORS": ERRORS, "NULL_F64": NULL_F64,
        "void": struct.Struct("<II").pack_into,
    }  # fmt: skip
    exec(compile(_source(table, layout), f"<record_writer {table.name}>", "exec"), scope)
    packers = _Packers(layout) if layout.variable else layout.packer(smallest).pack_into
    writer: Callable[..., None] = scope["make"](ring, ring.room, ring.drop, ring.refuse, ring.memory, packers)
    return writer if getattr(sys, "_is_gil_enabled", lambda: True)() else ring.locked(writer)


def _source(table: Table, layout: Layout) -> str:
    """Source of the writer. Sizes are constants where no column varies; header and nulls always are."""
    names = {column.name: f"v{i}" for i, column in enumerate(table.columns)}
    values = ", ".join(_value(column, names[column.name]) for column in layout.order)
    limit = "detail_limit" if table.detail else "limit"
    if layout.variable:
        blob = " + ".join(f"{names[column.name]}b" for column in layout.variable)
        prepare = [_encode_line(column, names[column.name]) for column in layout.variable]
        prepare += [f"blob = {blob}", f"words = {layout.fixed + 8} + len(blob) >> 3", "pack = packers[words]"]
        words, size, rest = "words", "(words << 3)", f"{values}, blob"
    else:
        prepare = []
        words, size, rest = str((layout.fixed + 8) >> 3), str((layout.fixed + 8) & -8), values
    lines = [
        *prepare,
        "at = ring.pos",
        f"end = at + {size}",
        f"if end > ring.{limit}:",
        f"    at = room({size}, {table.detail})",
        f"    if at < 0: return drop({table.name!r}, 'ring')",
        "else: ring.pos = end",
        f"try: pack(memory, at, {words}, {table.number}, {rest}, {MARK})",
        "except ERRORS:",
        f"    void(memory, at, {words}, 0)",
        "    raise",
    ]
    body = "\n            ".join(lines)
    return f"""
def make(ring, room, drop, refuse, memory, {"packers" if layout.variable else "pack"}):
    def write({", ".join(names.values())}):
        try:
            {body}
        except UnicodeEncodeError:
            write(*clean(({", ".join(names.values())},)))
        except ERRORS as error:
            refuse({table.name!r}, error)
    return write
"""


def _clean(values: tuple[Any, ...]) -> list[Any]:
    """Lone surrogates, which no encoding can carry, become "?"."""
    return [value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for value in values]


def pack_row(table: Table, values: Sequence[Any]) -> bytes:
    """One record as bytes, for rows that do not go through a ring. Raises what the hot path counts."""
    layout = layout_of(table)
    given = dict(zip((column.name for column in table.columns), values, strict=True))
    blobs = {column.name: _encode(column, given[column.name]) for column in layout.variable}
    blob = b"".join(part or b"" for part in blobs.values())
    words = (layout.fixed + 8 + len(blob)) >> 3
    row: list[Any] = []
    for column in layout.order:
        if is_variable(column):
            part = blobs[column.name]
            row.append(NULL_LENGTH if part is None else len(part))
        else:
            value = given[column.name]
            row.append(_NULLS[column.base] if value is None and column.nullable else value)
    return layout.packer(words).pack(words, layout.number, *row, *([blob] if layout.variable else []), MARK)


def _encode(column: Column, value: Any) -> bytes | None:
    if value is None and column.nullable:
        return None
    if column.base == "str":
        return bytes(value.encode("utf-8", "replace"))
    if column.base == "json":
        return json_bytes(value)
    return text_bytes(value) if column.base == "str[]" else number_bytes(_ARRAY[column.base], value)


def _encode_line(column: Column, name: str) -> str:
    """Source that sets NAMEb to the bytes of a variable column, or b'' for null."""
    if column.base == "str":
        made = f"{name}.encode()"
    elif column.base == "json":
        made = f"json({name})"
    elif column.base == "str[]":
        made = f"texts({name})"
    else:
        made = f"numbers({_ARRAY[column.base]!r}, {name})"
    return f"{name}b = b'' if {name} is None else {made}" if column.nullable else f"{name}b = {made}"


def _value(column: Column, name: str) -> str:
    """Source of what is packed for a column: the value, the byte length, or its null."""
    plain, null = (f"len({name}b)", str(NULL_LENGTH)) if is_variable(column) else (name, repr(_NULLS[column.base]))
    if column.base == "f64":
        null = "NULL_F64"
    return f"{null} if {name} is None else {plain}" if column.nullable else plain


def json_bytes(value: Any) -> bytes:
    """JSON text of a dict or list; a str or bytes is taken to be JSON text already; None is an empty object."""
    if value is None:
        return b"{}"
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    try:
        return _json(value)
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace")


def text_bytes(values: Iterable[str]) -> bytes:
    """Strings, each ended by a zero byte; a zero byte inside a string becomes U+2400."""
    values = list(values)
    if not values:
        return b""
    joined = "\0".join(values) + "\0"
    if joined.count("\0") != len(values):
        joined = "\0".join(value.replace("\0", "\u2400") for value in values) + "\0"
    return joined.encode("utf-8", "replace")


def number_bytes(code: str, values: Any) -> bytes:
    """The items of a list, tuple or array-like, little endian, as u32 ("I"), i64 ("q") or f64 ("d")."""
    if isinstance(values, (list, tuple)):
        return array(code, values).tobytes()
    return np.ascontiguousarray(values, dtype={"I": "<u4", "q": "<i8", "d": "<f8"}[code]).tobytes()
