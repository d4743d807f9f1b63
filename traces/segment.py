"""A segment: the records of one producer between two flushes, framed so that it can be read without knowing anything else.

    8s magic | u32 header bytes | u32 crc32 of everything after | u64 record bytes | header (msgpack) | records

The header names the producer, its boot (one life of its process), the segment's number, and the columns of every table in it, so that a
later version can read what an earlier one left behind. Segments may be concatenated.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from traces.schema import VERSION
from traces.table import Column, Table

MAGIC = b"WBSEG1\n\0"
CONTENT_TYPE = "application/vnd.workbench.segments"
_FRAME = struct.Struct("<8sIIQ")
_encode = msgspec.msgpack.Encoder().encode

_Description = dict[int, tuple[str, list[tuple[str, str]]]]


class Torn(ValueError):
    """The bytes are not whole segments."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Who wrote the segment. `tables`: number -> (name, [(column, kind)])."""

    producer: str
    boot: str
    seq: int
    ts: int
    tables: msgspec.Raw
    schema: int = VERSION


class Segment(msgspec.Struct, frozen=True):
    header: Header
    records: memoryview

    @property
    def key(self) -> tuple[str, str, int]:
        return self.header.producer, self.header.boot, self.header.seq

    def tables(self) -> dict[int, Table]:
        """The tables as the producer knew them."""
        return described(self.header.tables)


def describe(tables: Iterable[Table]) -> bytes:
    """Columns of tables as msgpack, for a header."""
    return _encode({table.number: (table.name, [(column.name, column.kind) for column in table.columns]) for table in tables})


def described(raw: bytes | msgspec.Raw) -> dict[int, Table]:
    return {
        number: Table(name, number, "", tuple(Column(*column, "") for column in columns))
        for number, (name, columns) in msgspec.msgpack.decode(raw, type=_Description).items()
    }


def build(producer: str, boot: str, seq: int, ts: int, tables: bytes, records: bytes) -> bytes:
    """A framed segment. `tables` comes from describe()."""
    header = _encode(Header(producer, boot, seq, ts, msgspec.Raw(tables)))
    header += bytes(-(len(header) + _FRAME.size) % 8)
    crc = zlib.crc32(records, zlib.crc32(header))
    return b"".join((_FRAME.pack(MAGIC, len(header), crc, len(records)), header, records))


def parse(body: bytes | memoryview) -> Iterator[Segment]:
    """The segments of a body, in order. Raises Torn."""
    view = memoryview(body)
    at = 0
    while at < len(view):
        if len(view) - at < _FRAME.size:
            raise Torn(f"{len(view) - at} bytes after the last segment")
        magic, header_size, crc, size = _FRAME.unpack_from(view, at)
        start = at + _FRAME.size
        end = start + header_size + size
        if magic != MAGIC or end > len(view) or zlib.crc32(view[start:end]) != crc:
            raise Torn(f"segment at byte {at} is torn or not a segment")
        try:
            header = msgspec.msgpack.decode(bytes(view[start : start + header_size]).rstrip(b"\0"), type=Header)
        except msgspec.MsgspecError as error:
            raise Torn(f"segment at byte {at} has an unreadable header: {error}") from error
        yield Segment(header, view[start + header_size : end])
        at = end
