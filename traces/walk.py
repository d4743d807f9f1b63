"""Finding the records in a run of record bytes."""

from __future__ import annotations

from traces.layout import MARK
from traces.segment import Torn


def word_offsets(records: bytes | memoryview) -> dict[int, list[int]]:
    """Table number -> where its records start, in 8-byte words. Number 0 is padding. Raises Torn when the sizes do not add up."""
    words = memoryview(records).cast("Q")
    found: dict[int, list[int]] = {}
    at, end = 0, len(words)
    while at < end:
        header = words[at]
        size = header & 0xFFFF_FFFF
        if not size or at + size > end:
            raise Torn(f"record at byte {at * 8} has an impossible size")
        number = header >> 32
        if number in found:
            found[number].append(at)
        else:
            found[number] = [at]
        at += size
    return found


def sound_prefix(records: bytes) -> int:
    """Bytes of complete records at the start of what a dead process left: ends at the first zero or impossible header, or missing mark."""
    words = memoryview(records).cast("Q")
    at, end = 0, len(words)
    while at < end:
        header = words[at]
        size = header & 0xFFFF_FFFF
        number = header >> 32
        if not size or at + size > end or number > 0xFFFF or (number and records[(at + size) * 8 - 1] != MARK):
            break
        at += size
    return at * 8


def only(records: bytes, keep: set[int]) -> tuple[bytes, dict[int, int]]:
    """The records of the tables in `keep`, and how many of each other table were left out."""
    words = memoryview(records).cast("Q")
    offsets = word_offsets(records)
    left_out = {number: len(found) for number, found in offsets.items() if number and number not in keep}
    starts = sorted(at for number, found in offsets.items() if number in keep for at in found)
    return b"".join(records[at * 8 : (at + (words[at] & 0xFFFF_FFFF)) * 8] for at in starts), left_out
