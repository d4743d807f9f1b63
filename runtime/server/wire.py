"""JSON and server-sent events as bytes."""

from __future__ import annotations

import msgspec

encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


def event(body: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + body + b"\n\n"
