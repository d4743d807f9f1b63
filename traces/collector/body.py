"""Request bodies, bounded before and after decompression."""

from __future__ import annotations

import zlib

from starlette.exceptions import HTTPException
from starlette.requests import Request

MOST = 64 << 20


async def read_body(request: Request, most: int = MOST) -> bytes:
    """The body, un-gzipped. Raises 413 when it is, or would become, larger than `most`; 415 and 400 for a bad encoding."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise HTTPException(413, f"body larger than {most >> 20} MiB")
        chunks.append(chunk)
    body = b"".join(chunks)
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == "gzip":
        return gunzip(body, most)
    if encoding != "identity":
        raise HTTPException(415, f"content encoding {encoding} is not supported; gzip is")
    return body


def gunzip(body: bytes, most: int) -> bytes:
    """Decompresses at most `most` bytes: a few KB can claim to be many GB."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        content = inflater.decompress(body, most + 1)
    except zlib.error as error:
        raise HTTPException(400, f"not gzip: {error}") from error
    if len(content) > most:
        raise HTTPException(413, f"body larger than {most >> 20} MiB when decompressed")
    if not inflater.eof:
        raise HTTPException(400, "gzip body ends early")
    return content
