"""Digests of full KV blocks, chained: equal digests mean equal tokens, equal images, and equal everything before. Imports no torch.

A block's keys and values depend on all tokens up to its end, and where tokens stand for an image, on the image: its content is part of
the digest of every block that holds some of its tokens. Positions follow from tokens and image grids, and need no place of their own.
A salt keeps prompts apart that are equal otherwise: of different tenants, or of traffic that is to be computed in full.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SIZE = 16  # bytes of a digest: two prompts must never meet by chance, nor by design


@dataclass(frozen=True, slots=True)
class ImageMark:
    """An image in a prompt: its tokens start .. start + count - 1, and the digest of its patches and grid."""

    start: int
    count: int
    digest: bytes


def image_digest(data: bytes, grid: tuple[int, int, int]) -> bytes:
    return hashlib.blake2b(data + repr(grid).encode(), digest_size=SIZE).digest()


def block_digests(
    tokens: Sequence[int], block_size: int, images: Sequence[ImageMark] = (), known: Sequence[bytes] = (), salt: str = ""
) -> list[bytes]:
    """One digest for each full block of `tokens`; the first ones may be `known` already and are not computed again."""
    digests = list(known)
    first, full = len(digests), len(tokens) // block_size
    raw = np.asarray(tokens[first * block_size : full * block_size], dtype=np.int64).tobytes()
    width = 8 * block_size
    for index in range(first, full):
        at = index * block_size
        digest = hashlib.blake2b(digests[-1] if digests else _seed(salt), digest_size=SIZE)
        digest.update(raw[(index - first) * width : (index - first + 1) * width])
        for image in images:
            if image.start < at + block_size and image.start + image.count > at:
                digest.update(image.digest + (image.start - at).to_bytes(8, "little", signed=True))
        digests.append(digest.digest())
    return digests


def _seed(salt: str) -> bytes:
    """What the first block hangs on. Hashed as nothing else is, so that no salt can be chosen to be the digest of another prefix."""
    return hashlib.blake2b(salt.encode(), digest_size=SIZE, person=b"salt").digest()


def packed(digests: Sequence[bytes]) -> bytes:
    return b"".join(digests)


def unpacked(data: bytes) -> list[bytes]:
    return [data[at : at + SIZE] for at in range(0, len(data), SIZE)]
