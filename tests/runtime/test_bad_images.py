"""Pictures that nobody should send: each becomes a 400 or 413 in the OpenAI form, and the reader reads on."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from runtime.images import ImageSettings
from runtime.server.errors import ApiError
from runtime.server.image_reader import ImageReader

SETTINGS = ImageSettings.of({"patch_size": 16, "size": {"shortest_edge": 4096, "longest_edge": 65536}})


def encoded(kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (80, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def bomb() -> bytes:
    """A PNG of 60,000 x 60,000 pixels by its header, in some hundred bytes."""
    data = bytearray(encoded("PNG"))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
    return bytes(data)


BAD = {
    "a decompression bomb": (uri(bomb()), 413, "max_image_pixels"),
    "a truncated JPEG": (uri(encoded("JPEG")[:900], "image/jpeg"), 400, "truncated"),
    "a truncated PNG": (uri(encoded("PNG")[:500]), 400, "decoded"),
    "an SVG": (uri(b'<svg xmlns="http://www.w3.org/2000/svg"/>', "image/svg+xml"), 400, "none of"),
    "a page": (uri(b"<html></html>", "text/html"), 400, "data URI"),
    "a picture's type around no picture": (uri(b"\0" * 64), 400, "none of"),
    "an address": ("http://example.org/a.png", 400, "does not fetch"),
    "a private address": ("https://169.254.169.254/latest/meta-data", 400, "does not fetch"),
    "a file": ("file:///etc/hostname", 400, "data URI"),
    "no base64": ("data:image/png;base64,@@@@", 400, "base64"),
    "too many bytes": (uri(b"A" * 300_000), 413, "max_image_bytes"),
    "nothing": ("", 400, "data URI"),
}


@pytest.fixture
def reader() -> Any:
    made = ImageReader(SETTINGS, token=7, spatial=True, workers=1, max_bytes=200_000, max_pixels=1_000_000)
    yield made
    made.close()


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused_in_the_openai_form_and_the_next_is_read(name: str, reader: ImageReader) -> None:
    address, status, word = BAD[name]
    with pytest.raises(ApiError) as caught:
        asyncio.run(reader.read([("messages[0].content[0].image_url", address)]))
    error = json.loads(caught.value.body())["error"]
    assert (caught.value.status, error["type"], error["param"]) == (status, "invalid_request_error", "messages[0].content[0].image_url")
    assert word in error["message"]
    (patches,) = asyncio.run(reader.read([("x", uri(encoded("PNG")))]))
    assert patches.tokens == patches.grid[1] * patches.grid[2] // 4


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_damaged_files_never_raise_anything_else(kind: str, reader: ImageReader) -> None:
    rng = np.random.default_rng(1)
    whole = np.frombuffer(encoded(kind), np.uint8)
    for _ in range(60):
        data = whole.copy()
        places = rng.integers(0, min(len(data), 600), 6)
        data[places] = rng.integers(0, 256, 6)
        try:
            reader._read("x", uri(data.tobytes()))
        except ApiError as error:
            assert error.status in (400, 413)
