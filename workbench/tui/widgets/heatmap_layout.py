"""Where the cells of a heatmap lie: how many columns an expert gets, or how many experts share one.

Pure arithmetic over (rows, columns, groups) and the size of the area; a bin takes the maximum of its cells, so that a hot
cell never disappears.
"""

from __future__ import annotations

from dataclasses import dataclass

_WIDEST = 9
_TALLEST = 10


@dataclass(frozen=True, slots=True)
class Axis:
    """Bins along one axis. `bins[i]` is the half-open range of cells in bin i; `starts[i]` its first column or half line."""

    bins: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]
    size: int

    @property
    def length(self) -> int:
        return self.starts[-1] + self.size if self.starts else 0

    def bin_of(self, cell: int) -> int:
        """The bin that holds a cell."""
        return next((i for i, (first, end) in enumerate(self.bins) if first <= cell < end), 0)

    def bin_at(self, offset: int) -> int | None:
        """The bin drawn at a column or half line; None in a gap or outside."""
        for index, start in enumerate(self.starts):
            if start <= offset < start + self.size:
                return index
        return None


def columns(cells: int, width: int, groups: int = 1) -> Axis:
    """Bins of `cells` columns, in `groups` equal groups with a gap of one column between them where that costs little."""
    gaps = groups - 1
    grouped = groups > 1 and cells % groups == 0 and gaps <= width // 4 and groups <= width - gaps
    if not grouped:
        groups, gaps = 1, 0
    per_group = cells // groups if cells else 0
    room = max((width - gaps) // groups, 1)
    size = min(max(room // max(per_group, 1), 1), _WIDEST)
    share = -(-per_group // room) if per_group > room else 1
    bins: list[tuple[int, int]] = []
    starts: list[int] = []
    for group in range(groups):
        for index, first in enumerate(range(0, per_group, share)):
            base = group * per_group
            if index == 0:
                group_start = starts[-1] + size + 1 if starts else 0
            bins.append((base + first, base + min(first + share, per_group)))
            starts.append(group_start + index * size)
    return Axis(tuple(bins), tuple(starts), size)


def rows(cells: int, lines: int, half: bool = True) -> Axis:
    """Bins of `cells` rows in `lines` text lines, measured in half lines. Without half blocks a row takes whole lines."""
    room = max(lines, 1) * 2
    smallest = 1 if half else 2
    size = min(room // max(cells, 1), _TALLEST)
    size = size - size % 2 if size > 1 else max(size, smallest)
    fit = max(room // size, 1)
    share = -(-cells // fit) if cells > fit else 1
    bins = tuple((first, min(first + share, cells)) for first in range(0, cells, share))
    return Axis(bins, tuple(index * size for index in range(len(bins))), size)
