"""Decodes and preprocesses images in a bounded pool of threads, so that neither the event loop nor text requests wait for them."""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError

from runtime.images import ImageSettings, mrope_positions, preprocess
from runtime.pixels.files import DAMAGED, FORMATS
from runtime.pixels.flat import upright_size
from runtime.prefix_digest import image_digest
from runtime.server.data_uri import decode_image
from runtime.server.errors import ApiError, invalid


@dataclass(frozen=True, slots=True)
class Patches:
    """One image: float32 patches [P, width] as bytes, its grid (t, h, w) in patches, how many tokens it takes in the prompt, and its size
    (width, height) as it was sent, upright."""

    data: bytes
    width: int
    grid: tuple[int, int, int]
    tokens: int
    digest: bytes  # of data and grid
    size: tuple[int, int]


class ImageReader:
    """`token`: the id that stands for an image in the prompt; `spatial`: whether its tokens have positions t, h, w (ArchSpec)."""

    def __init__(self, settings: ImageSettings, token: int, spatial: bool, workers: int, max_bytes: int, max_pixels: int) -> None:
        self.token = token
        self._spatial = spatial
        self._settings = settings
        self._max_bytes = max_bytes
        self._max_pixels = max_pixels
        Image.MAX_IMAGE_PIXELS = None  # the size is checked below, against our own limit and before anything is decoded
        self._pool = ThreadPoolExecutor(workers, "image")

    async def read(self, uris: list[tuple[str, str]]) -> list[Patches]:
        """From (place in the request, data URI). ApiError 400 for what is no image, 413 for one with too many bytes or pixels."""
        loop = asyncio.get_running_loop()
        return list(await asyncio.gather(*(loop.run_in_executor(self._pool, self._read, *uri) for uri in uris)))

    def positions(self, tokens: list[int], grids: list[tuple[int, int, int]]) -> bytes:
        """int64 [3, T] of a prompt with images; empty where they count on like text."""
        if not self._spatial:
            return b""
        ids = np.asarray(tokens, dtype=np.int64)
        positions = mrope_positions(ids, grids, self.token, self._settings.merge)
        return np.ascontiguousarray(positions, dtype=np.int64).tobytes()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, where: str, uri: str) -> Patches:
        data = decode_image(uri, self._max_bytes, where)
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                self._check_size(where, image.width, image.height)
                image.load()
                height, width = upright_size(image)
                patches, grid = preprocess(image, self._settings)
        except UnidentifiedImageError as error:
            raise invalid(f"{where}: the image is none of {', '.join(FORMATS)}", where) from error
        except (OSError, SyntaxError, ValueError, *DAMAGED) as error:
            raise invalid(f"{where}: the image cannot be decoded: {error}", where) from error
        (t, h, w), raw = grid, patches.tobytes()
        tokens = t * h * w // self._settings.merge**2
        return Patches(raw, patches.size // len(patches), (t, h, w), tokens, image_digest(raw, (t, h, w)), (width, height))

    def _check_size(self, where: str, width: int, height: int) -> None:
        if width * height > self._max_pixels:
            message = f"{where}: {width} x {height} pixels are above the limit of {self._max_pixels} pixels (max_image_pixels)"
            raise ApiError(413, message, param=where, code="image_too_large")
