"""Frames on a stream: a four-byte length, then so many bytes. Used between the API process and the ranks, and between nodes."""

from __future__ import annotations

import asyncio
import struct

_LENGTH = struct.Struct(">I")


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader, largest: int) -> bytes:
    """One body of at most `largest` bytes. Raises ConnectionError for a longer one, asyncio.IncompleteReadError at the end."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > largest:
        raise ConnectionError(f"a frame of {length} bytes")
    return await reader.readexactly(length)


def take_frames(buffer: bytearray) -> list[bytes]:
    """The bodies that are complete, taken off the front of the buffer."""
    found: list[bytes] = []
    at = 0
    while len(buffer) - at >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer, at)
        end = at + _LENGTH.size + length
        if end > len(buffer):
            break
        found.append(bytes(buffer[at + _LENGTH.size : end]))
        at = end
    if at:
        del buffer[:at]
    return found
