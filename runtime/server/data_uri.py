"""An image of a request: only data URIs with base64. Nothing is ever fetched, and no path is ever opened."""

from __future__ import annotations

import base64
import binascii

from runtime.server.errors import ApiError, invalid


def decode_image(uri: str, limit: int, where: str) -> bytes:
    """The image file's bytes. ApiError 400 for anything but a base64 data URI, 413 above `limit` bytes."""
    if uri[:8].lower().startswith(("http://", "https://")):
        raise invalid(f"{where}: this server does not fetch images; send it as a data URI (data:image/png;base64,...)", where)
    header, comma, payload = uri.partition(",")
    if not comma or not header.lower().startswith("data:image/") or not header.lower().endswith(";base64"):
        raise invalid(f"{where}: an image must be a data URI of the form data:image/png;base64,...", where)
    if len(payload) * 3 // 4 - 2 > limit:
        raise ApiError(413, f"{where}: the image is larger than {limit} bytes (max_image_bytes)", param=where, code="image_too_large")
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error as error:
        raise invalid(f"{where}: the image is not base64: {error}", where) from error
