"""Parts of files and the targets they go to. Torch-free, made from headers alone.

A target is one of our weight tensors, already in the shape the layers use (q, k, v stacked; gate and up stacked; one leading row
per local expert slot; only this lane's heads and columns under tensor parallelism). A part is one contiguous byte range of a
checkpoint file, or the same columns of all rows there, and its place in a target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from probes.checkpoint import ITEM_BYTES, Checkpoint
from runtime.arch import ArchSpec
from runtime.layout import Share
from runtime.stored import Kind, Stored, locate
from traces.errors import CheckpointError

Index = tuple[int | slice, ...]
ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of the weight that a quantised part belongs to: a byte range of their own, [rows, groups or blocks]. A scale serves
    `unit` (rows, columns); the part begins at row and column `origin` of the weight."""

    tensor: str
    file: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    kind: Kind
    unit: tuple[int, int]
    origin: tuple[int, int] = (0, 0)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Part:
    """`shape` stored values of `tensor` at `offset` of `file` go to `targets[target][index]`: transposed if so marked; interleaved: the
    stored rows (transposed: columns) alternate between the first and the second half of the target's. With `stride` they are columns of
    a wider matrix, whose rows lie that many bytes apart."""

    tensor: str
    file: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    target: str
    index: Index = ()
    transpose: bool = False
    interleaved: bool = False
    scales: Scales | None = None
    count: int = 0  # values of the target it fills, where these are not as many as are stored
    stride: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def values(self) -> int:
        return self.count or math.prod(self.shape)


@dataclass(slots=True)
class RankPlan:
    """The parts of one rank, and the shapes of its targets."""

    parts: list[Part] = field(default_factory=list)
    targets: dict[str, tuple[int, ...]] = field(default_factory=dict)
    matrices: set[str] = field(default_factory=set)  # targets that rows are multiplied with, [..., out, in]
    precise: set[str] = field(default_factory=set)  # targets kept in float32 whatever the compute dtype
    notes: list[str] = field(default_factory=list)  # what was recognised and left out

    @property
    def bytes_read(self) -> int:
        return sum(part.nbytes + (part.scales.nbytes if part.scales is not None else 0) for part in self.parts)

    def without_experts(self) -> RankPlan:
        """The same, but for the routed experts."""
        kept = {name: shape for name, shape in self.targets.items() if ".experts." not in name}
        parts = [part for part in self.parts if part.target in kept]
        return RankPlan(parts, kept, self.matrices & kept.keys(), self.precise & kept.keys(), self.notes)


class Planner:
    """Collects parts, and remembers which tensors of the checkpoint were asked for. While not `taking`, weights are only looked for:
    other ranks read them."""

    def __init__(self, checkpoint: Checkpoint, arch: ArchSpec, share: Share) -> None:
        self.tensors = checkpoint.tensors
        self.arch = arch
        self.share = share
        self.taking = True
        self.plan = RankPlan()
        self.seen: set[str] = set()

    def find(self, names: str | tuple[str, ...], shape: tuple[int, ...]) -> Stored:
        """Where a weight lies, after checking that it is there, in a dtype there is a decoder for and in the expected shape."""
        found = locate(self.tensors, (names,) if isinstance(names, str) else names, shape, self.arch.quant)
        self.seen.update(found.names)
        return found

    def take(
        self, names: str | tuple[str, ...], shape: tuple[int, ...], target: str, index: Index = (), rows: slice = ALL, columns: slice = ALL
    ) -> None:
        """A weight, or some of its rows, or some of a matrix' columns."""
        found = self.find(names, shape)
        first, last, _ = rows.indices(shape[0])
        left, right, _ = columns.indices(shape[-1])
        if last - first == shape[0] and right - left == shape[-1]:
            self._part(found, found.packed_shape, 0, target, index)
            return
        packed = shape[-1] // found.packed_shape[-1]  # values in one that is stored
        if found.kind in ("mxfp4", "int4"):
            self._check_groups(found, left, right)
        entry, item = found.entry, ITEM_BYTES[found.entry.dtype]
        row, kept, stride = math.prod(found.packed_shape[1:]) * item, (last - first, *found.packed_shape[1:]), 0
        offset, count = entry.offset + first * row, (last - first) * math.prod(shape[1:])
        if right - left != shape[-1] and len(shape) > 1:
            kept, stride, count = (last - first, (right - left) // packed), row, (last - first) * (right - left)
            offset += left // packed * item
        scales = self._scales(found, 0, (first, left)) if found.scale is not None else None
        self._add(Part(found.name, entry.file, entry.dtype, offset, kept, target, index, scales=scales, count=count, stride=stride))

    def _check_groups(self, found: Stored, left: int, right: int) -> None:
        """Columns are cut between groups of values that share a scale, and never within one."""
        assert self.arch.quant is not None
        group = self.arch.quant.group
        if left % group or right % group:
            message = f"{found.name} has a scale for every {group} values of a row, and cannot be cut at columns {left} and {right}"
            raise CheckpointError(message, f"choose a --tp that cuts its {found.shape[-1]} columns into multiples of {group}")

    def take_first(self, name: str, target: str, count: int, rows: slice = ALL) -> None:
        """`rows` of the first `count` values of a tensor that may be longer, or have more dimensions (KDA's A_log)."""
        shape = self.tensors[name].shape if name in self.tensors else (count,)
        entry = self.find(name, shape if math.prod(shape) >= count else (count,)).entry
        first, last, _ = rows.indices(count)
        self._add(Part(name, entry.file, entry.dtype, entry.offset + first * ITEM_BYTES[entry.dtype], (last - first,), target))

    def take_expert(
        self, name: str, stacked: tuple[int, ...], expert: int, target: str, index: Index, transpose: bool, interleaved: bool = False
    ) -> None:
        """One expert's matrix (or vector) out of a fused tensor [E, rows, columns] or [E, rows]."""
        found = self.find(name, stacked)
        self._part(found, found.packed_shape[1:], expert, target, index, transpose, interleaved)

    def target(self, name: str, *shape: int, precise: bool = False) -> str:
        if self.taking:
            self.plan.targets[name] = shape
            if precise:
                self.plan.precise.add(name)
        return name

    def matrix(self, name: str, *shape: int, precise: bool = False) -> str:
        if self.taking:
            self.plan.matrices.add(name)
        return self.target(name, *shape, precise=precise)

    def _add(self, part: Part) -> None:
        if self.taking and part.nbytes:
            self.plan.parts.append(part)

    def _part(
        self, found: Stored, shape: tuple[int, ...], nth: int, target: str, index: Index, transpose: bool = False, interleaved: bool = False
    ) -> None:
        """The `nth` block of `shape` stored values of a tensor."""
        entry, scales = found.entry, None
        if found.scale is not None:
            scales = self._scales(found, nth)
        offset = entry.offset + nth * math.prod(shape) * ITEM_BYTES[entry.dtype]
        logical = math.prod(found.shape[-len(shape) :])
        part = Part(found.name, entry.file, entry.dtype, offset, shape, target, index, transpose, interleaved, scales, logical)
        self._add(part)

    def _scales(self, found: Stored, nth: int, origin: tuple[int, int] = (0, 0)) -> Scales:
        entry, quant = found.scale, self.arch.quant
        assert entry is not None and quant is not None
        shape = entry.shape[-2:]
        offset = entry.offset + nth * math.prod(shape) * ITEM_BYTES[entry.dtype]
        unit = quant.block if found.kind == "fp8_block" else (1, quant.group)
        return Scales(found.scale_name, entry.file, entry.dtype, offset, shape, found.kind, unit, origin)
