"""Records of a segment -> Arrow tables. Fixed columns are read by numpy at once; only the bytes of strings are touched row by row."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traces.layout import MARK, NULL_BOOL, NULL_F64_BITS, NULL_I32, NULL_I64, NULL_LENGTH, Layout, is_variable, item_type, layout_of
from traces.schema import DROP, TABLES, VERSION
from traces.segment import Segment, described
from traces.table import Column, Table
from traces.walk import word_offsets

_Int = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
_NULLS = {"i64": NULL_I64, "i32": NULL_I32, "bool": NULL_BOOL}


class Unreadable(ValueError):
    """A segment this version can never store."""


@dataclass(slots=True)
class Rows:
    """Rows by table, and how many rows of which table could not be kept."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(table.num_rows for table in self.tables.values())


def decode(segment: Segment) -> Rows:
    """All rows of a segment, in the order they were recorded within each table. Raises Unreadable, Torn."""
    if segment.header.schema > VERSION:
        raise Unreadable(f"segment of schema version {segment.header.schema}; this workbench reads up to {VERSION}")
    raw = np.frombuffer(segment.records, np.uint8)
    words = raw.view("<u8")
    known = _layouts(bytes(segment.header.tables))
    rows = Rows()
    for number, found in word_offsets(segment.records).items():
        if number == 0:
            continue
        if number not in known:
            raise Unreadable(f"records of table {number}, which the segment does not describe")
        table, layout = known[number]
        at = np.asarray(found, np.int64)
        sizes = (words[at] & 0xFFFF_FFFF).astype(np.int64)
        whole = (raw[(at + sizes) * 8 - 1] == MARK) & (sizes * 8 > layout.fixed)
        if not whole.all():
            rows.lost[table.name] = int((~whole).sum())
            at = at[whole]
        if len(at):
            rows.tables[table.name] = conform(_table(table, layout, raw, at), table.name)
    return rows


def arrow_rows(table: Table, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Rows, as values in column order, as an Arrow table. At least one row."""
    schema = table.arrow
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def conform(table: pa.Table, name: str) -> pa.Table:
    """A table with the columns of this version of the schema: missing nullable ones are null. Raises Unreadable."""
    target = TABLES.get(name)
    if target is None:
        raise Unreadable(f"there is no table {name!r}")
    columns = []
    for column in target.columns:
        if column.name in table.column_names:
            values = table.column(column.name)
            if values.null_count and not column.nullable:
                raise Unreadable(f"{name}.{column.name} is null")
            try:
                columns.append(values if values.type == column.arrow else values.cast(column.arrow))
            except pa.ArrowInvalid as error:
                raise Unreadable(f"{name}.{column.name}: {error}") from error
        elif column.nullable:
            columns.append(pa.nulls(table.num_rows, column.arrow))
        else:
            raise Unreadable(f"{name}.{column.name} is missing")
    return pa.Table.from_arrays(columns, schema=target.arrow)


@lru_cache(maxsize=64)
def _layouts(raw: bytes) -> dict[int, tuple[Table, Layout]]:
    return {number: (table, layout_of(table)) for number, table in described(raw).items()}


def _table(table: Table, layout: Layout, raw: _Bytes, at: _Int) -> pa.Table:
    """`at`: word offsets of the table's records. Raises Unreadable when a record's lengths reach beyond it."""
    words = raw.view("<u8")
    fixed = words[at[:, None] + np.arange(layout.dtype.itemsize // 8)].view(layout.dtype).ravel()
    starts = at * 8 + layout.fixed
    ends = (at + (words[at] & 0xFFFF_FFFF).astype(np.int64)) * 8
    arrays: dict[str, pa.Array] = {}
    for column in layout.variable:
        lengths = fixed[column.name].astype(np.int64)
        absent = lengths == NULL_LENGTH
        lengths[absent] = 0
        if (starts + lengths >= ends).any():
            raise Unreadable(f"{table.name}.{column.name} is longer than its record")
        arrays[column.name] = _variable(column, _gather(raw, starts, lengths), lengths, absent)
        starts = starts + lengths
    for column in table.columns:
        if not is_variable(column):
            arrays[column.name] = _fixed(column, np.ascontiguousarray(fixed[column.name]))
    return pa.table({column.name: arrays[column.name] for column in table.columns})


def _fixed(column: Column, values: npt.NDArray[Any]) -> pa.Array:
    absent = None
    if column.nullable:
        absent = values.view("<u8") == NULL_F64_BITS if column.base == "f64" else values == _NULLS[column.base]
    return pa.array(values == 1 if column.base == "bool" else values, mask=absent, from_pandas=False)


def _gather(raw: _Bytes, starts: _Int, lengths: _Int) -> bytes:
    """The bytes raw[start : start + length] of every row, one after the other."""
    size = int(lengths[0])
    if len(starts) > 1 and size and (lengths == size).all():
        step = int(starts[1] - starts[0])
        if (np.diff(starts) == step).all():
            view = np.lib.stride_tricks.as_strided(raw[int(starts[0]) :], (len(starts), size), (step, 1), writeable=False)
            return view.tobytes()
    whole = memoryview(raw.data)
    return b"".join([whole[start:end] for start, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)])


def _offsets(lengths: _Int) -> npt.NDArray[np.int32]:
    ends = np.cumsum(lengths)
    if len(ends) and ends[-1] > 2**31 - 1:
        raise Unreadable("more than 2 GiB of text in one column of a segment")
    return np.concatenate(([0], ends)).astype(np.int32)


def _variable(column: Column, data: bytes, lengths: _Int, absent: npt.NDArray[np.bool_]) -> pa.Array:
    mask = pa.array(absent) if absent.any() else None
    item = item_type(column)
    if item is not None:
        values = pa.array(np.frombuffer(data, item))
        return pa.ListArray.from_arrays(_offsets(lengths // np.dtype(item).itemsize), values, mask=mask)
    if column.base == "str[]":
        zero = np.frombuffer(data, np.uint8) == 0
        before = np.concatenate(([0], np.cumsum(zero)))
        ends = np.flatnonzero(zero)
        texts = _strings(data.replace(b"\0", b""), np.concatenate(([0], ends - np.arange(len(ends)))).astype(np.int32), None)
        return pa.ListArray.from_arrays(before[_offsets(lengths)].astype(np.int32), texts, mask=mask)
    return _strings(data, _offsets(lengths), absent if mask is not None else None)


def _strings(data: bytes, offsets: npt.NDArray[np.int32], absent: npt.NDArray[np.bool_] | None) -> pa.Array:
    valid = None if absent is None else pa.py_buffer(np.packbits(~absent, bitorder="little").tobytes())
    array = pa.Array.from_buffers(pa.string(), len(offsets) - 1, [valid, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)])
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Unreadable(f"text that is not UTF-8: {error}") from error
    return array


def loss_rows(rows: Rows, producer: str) -> Rows:
    """The same rows, with a `drop` row for every table that lost some: torn records of a process that died writing them."""
    now = time.time_ns()
    lost = [(now, producer, table, count, "torn") for table, count in rows.lost.items()]
    added = arrow_rows(DROP, lost)
    there = rows.tables.get(DROP.name)
    return Rows({**rows.tables, DROP.name: added if there is None else pa.concat_tables([there, added])})
