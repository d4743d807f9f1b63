"""Segment times per layer, summed over a window of ten seconds: what stays when the rows themselves are sampled."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

SEGMENTS = ("attention", "router", "exchange", "dispatch", "experts", "combine")
BUCKETS = 96  # four an octave from 1 us: up to 2^24 us, about 17 s; longer ones go into the last


def bucket(ns: int) -> int:
    """Bucket i holds durations in [2^(i/4), 2^((i+1)/4)) us; shorter than 1 us counts as 1 us."""
    return min(int(4 * math.log2(ns / 1000)), BUCKETS - 1) if ns > 1000 else 0


@dataclass(slots=True)
class Summary:
    """Of one segment of one layer, ns."""

    n: int = 0
    total: int = 0
    least: int = 0
    most: int = 0
    histogram: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, ns: int) -> None:
        self.least = ns if not self.n else min(self.least, ns)
        self.most = max(self.most, ns)
        self.n += 1
        self.total += ns
        self.histogram[bucket(ns)] += 1


class Rollup:
    """Fed with segment times of one layer in one step; `flush` gives the columns of `rollup` and starts again."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._summaries: dict[tuple[int, str], Summary] = {}

    def add(self, layer: int, durations: tuple[int, ...]) -> None:
        """`durations` in the order of SEGMENTS."""
        for segment, ns in zip(SEGMENTS, durations, strict=True):
            key = (layer, segment)
            summary = self._summaries.get(key)
            if summary is None:
                summary = self._summaries[key] = Summary()
            summary.add(ns)

    def flush(self) -> list[tuple[int, int, int, str, int, int, int, int, list[int]]]:
        """Rows (ts, rank, layer, segment, n, sum, min, max, hist); histograms end at their last filled bucket."""
        now = time.time_ns()
        rows = []
        for (layer, segment), s in sorted(self._summaries.items()):
            last = max(i for i, n in enumerate(s.histogram) if n) + 1
            rows.append((now, self._rank, layer, segment, s.n, s.total, s.least, s.most, s.histogram[:last]))
        self._summaries = {}
        return rows
