"""The body of a request: JSON, and read no further than its limit."""

from __future__ import annotations

from starlette.requests import Request

from runtime.server.errors import ApiError

JSON = "application/json"


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. ApiError 415 for a declared type that is not JSON, 413 above `limit` bytes, at once when its length is declared."""
    _check_type(request.headers.get("content-type", ""))
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > limit:
        raise _too_large(limit)
    chunks, size = [], 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
    return b"".join(chunks)


def _check_type(declared: str) -> None:
    """A body without a type is taken for JSON: plain tools leave it out."""
    kind = declared.partition(";")[0].strip().lower()
    if kind and kind != JSON and not kind.endswith("+json"):
        message = f"the body is declared as {kind[:80]!r}: send JSON, with the header content-type: {JSON}"
        raise ApiError(415, message, code="unsupported_media_type")


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
