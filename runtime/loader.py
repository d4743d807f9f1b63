"""Reads a rank's plan into preallocated targets: positional reads in parallel threads, converted a piece at a time.

Peak memory is the targets plus two staging buffers a thread, and for quantised weights their scales and a decoded piece. Scales are
read first. Nothing is kept of a shard that the rank does not need.

A gigabyte of bfloat16 costs 0.65 s of CPU: 0.4 for the kernel to bring in and clear the targets' pages, 0.1 to copy, 0.1 to look for values
that are not finite. Reading straight into the targets would save the copy, but a direct read wants memory to lie as the file does, to 512
bytes, and a weight that does not begin at a multiple of 64 multiplies one row by up to a quarter slower: one file in eight would allow it.
Huge pages (madvise) took two to five times as long to clear in a virtual machine, MADV_POPULATE_WRITE as long as faults.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from probes.checkpoint import ITEM_BYTES
from runtime.dequant import decode
from runtime.load_mode import LoadSettings
from runtime.load_style import loading
from runtime.planner import Part, RankPlan
from runtime.shard_file import ShardFile, staging
from runtime.step_rows import RowSink
from traces import schema
from traces.errors import CheckpointError

DTYPES = {
    "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8, "F8_E8M0": torch.uint8, "I32": torch.int32,
}  # fmt: skip
Progress = Callable[[int, int], None]  # (bytes done, bytes in total)
SEGMENT = 64 << 10  # columns of a row shorter than this are cut out of whole rows: another read costs more than the bytes between


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a part: `shape` values at `offset` of the file go to `into`."""

    part: Part
    offset: int
    shape: tuple[int, ...]
    into: Tensor
    first: int  # row of the part that it begins with
    scales: Tensor | None  # of the whole part

    @property
    def nbytes(self) -> int:
        """To read: of columns, with what lies between them."""
        last = math.prod(self.shape[1:]) * ITEM_BYTES[self.part.dtype]
        return (self.shape[0] - 1) * (self.part.stride or last) + last


@dataclass(slots=True)
class _ShardLoad:
    """One shard's reads, and what they came to."""

    file: str
    runs: list[list[_Piece]]  # pieces of a run are adjacent in the file: one read
    started: int = 0
    ended: int = 0
    kept: int = 0

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for run in self.runs for piece in run)


@dataclass(slots=True)
class Loader:
    """Loads plans from one checkpoint folder for one rank."""

    root: Path
    dtype: torch.dtype
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    recorder: RowSink | None = None
    progress: Progress | None = None
    settings: LoadSettings = field(default_factory=LoadSettings)
    placing: Callable[[], None] | None = None  # called before values are placed
    beside: int = 0  # bytes that this rank will keep beside the targets of its plan

    def load(self, plan: RankPlan) -> dict[str, Tensor]:
        """The plan's targets, complete and finite, or CheckpointError naming tensor and file."""
        _refuse_half(plan)
        with loading(self, plan) as styled:
            targets = self.allocate(plan)
            self.fill(plan, targets)
            return styled.finish(targets)

    def allocate(self, plan: RankPlan) -> dict[str, Tensor]:
        """Empty targets. On the CPU a float32 matrix lies in memory by columns: MKL multiplies few rows by it up to twice as fast, and
        many rows not slower (measured from 512 x 512 to 5120 x 2048). In bfloat16 it lies by rows, as it is stored: by columns products
        take 6 to 20 times as long (1024 x 1024, 2048 x 512, 512 x 2048, 1 to 64 rows), and loading has to transpose."""
        columns = self.device.type == "cpu" and self.dtype == torch.float32
        targets = {}
        for name, shape in plan.targets.items():
            by_columns = columns and name in plan.matrices
            order = (*shape[:-2], shape[-1], shape[-2]) if by_columns else shape
            dtype = torch.float32 if name in plan.precise else self.dtype
            target = torch.empty(order, dtype=dtype, device=self.device)
            targets[name] = target.transpose(-1, -2) if by_columns else target
        return targets

    def fill(self, plan: RankPlan, targets: dict[str, Tensor]) -> None:
        """Reads every part of the plan into targets that exist already: scales first, what they scale after."""
        scales = {key: torch.empty(part.shape, dtype=DTYPES[part.dtype]) for key, part in _scale_parts(plan).items()}
        small = _by_shard(list(_scale_parts(plan).values()), scales, {}, self.settings.chunk)
        shards = _by_shard(plan.parts, targets, scales, self.settings.chunk)
        ledger = _Ledger(sum(shard.nbytes for shard in (*small, *shards)), self.progress)
        for stage in (small, shards):
            self._fill(stage, ledger)

    def _fill(self, shards: list[_ShardLoad], ledger: _Ledger) -> None:
        buffers = threading.local()
        with ExitStack() as stack:
            opened = [(shard, stack.enter_context(self._open(shard))) for shard in shards]
            pool = ThreadPoolExecutor(self.settings.threads, thread_name_prefix="load")
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)  # runs before the files are closed
            work = [pool.submit(self._read, file, shard, run, buffers, ledger) for shard, file in opened for run in shard.runs]
            for future in work:
                future.result()
            for shard, file in opened:
                self._record(shard, file)

    def _open(self, shard: _ShardLoad) -> ShardFile:
        settings = self.settings
        direct = settings.direct_from is not None and shard.nbytes >= settings.direct_from
        if settings.pread is None:
            return ShardFile(self.root / shard.file, direct, settings.retries)
        return ShardFile(self.root / shard.file, direct, settings.retries, settings.pread)

    def _read(self, file: ShardFile, shard: _ShardLoad, run: list[_Piece], buffers: threading.local, ledger: _Ledger) -> None:
        buffer = getattr(buffers, "staging", None)
        if buffer is None:
            buffer = buffers.staging = staging(self.settings.chunk)
            buffers.turned = torch.empty(self.settings.chunk, dtype=torch.uint8)
        begin = time.time_ns()
        nbytes = sum(piece.nbytes for piece in run)
        data = file.read(run[0].offset, nbytes, buffer)
        if self.placing is not None:
            self.placing()
        at = 0
        for piece in run:
            _store(piece, data[at : at + piece.nbytes], buffers.turned)
            at += piece.nbytes
        kept = sum(piece.into.nbytes for piece in run)
        ledger.done(shard, begin, nbytes, kept)

    def _record(self, shard: _ShardLoad, file: ShardFile) -> None:
        if self.recorder is None or not shard.runs:
            return
        self.recorder.row(
            schema.LOAD,
            ts=shard.started,
            dur=shard.ended - shard.started,
            rank=self.rank,
            file=shard.file,
            bytes_read=shard.nbytes,
            bytes_kept=shard.kept,
            retries=file.retries,
            source=file.source,
        )


class _Ledger:
    """Sums over the reading threads."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._done = 0
        self._progress = progress

    def done(self, shard: _ShardLoad, begin: int, nbytes: int, kept: int) -> None:
        with self._lock:
            shard.started = min(shard.started or begin, begin)
            shard.ended = max(shard.ended, time.time_ns())
            shard.kept += kept
            self._done += nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)


def _refuse_half(plan: RankPlan) -> None:
    """Every value of every target must come from somewhere."""
    covered = dict.fromkeys(plan.targets, 0)
    for part in plan.parts:
        covered[part.target] += part.values
    for name, shape in plan.targets.items():
        if covered[name] != math.prod(shape):
            raise CheckpointError(f"{covered[name]} of {math.prod(shape)} values of {name} would be loaded", "half a model is not served")


def _scale_parts(plan: RankPlan) -> dict[str, Part]:
    """The scales as parts of their own, by `_scale_key`."""
    parts = {}
    for part in plan.parts:
        if (found := part.scales) is not None:
            parts[_scale_key(part)] = Part(found.tensor, found.file, found.dtype, found.offset, found.shape, _scale_key(part))
    return parts


def _scale_key(part: Part) -> str:
    assert part.scales is not None
    return f"{part.scales.tensor}@{part.scales.offset}"


def _by_shard(parts: list[Part], targets: dict[str, Tensor], scales: dict[str, Tensor], chunk: int) -> list[_ShardLoad]:
    """Parts as reads in file order."""
    shards: dict[str, list[Part]] = {}
    for part in parts:
        shards.setdefault(part.file, []).append(part)
    return [_ShardLoad(file, list(_runs(shard, targets, scales, chunk))) for file, shard in sorted(shards.items())]


def _runs(parts: list[Part], targets: dict[str, Tensor], scales: dict[str, Tensor], chunk: int) -> Iterator[list[_Piece]]:
    run: list[_Piece] = []
    size = 0
    for part in sorted(parts, key=lambda p: p.offset):
        own = scales[_scale_key(part)] if part.scales is not None else None
        for piece in _pieces(part, targets[part.target], own, chunk):
            adjacent = bool(run) and run[-1].offset + run[-1].nbytes == piece.offset
            if run and (not adjacent or size + piece.nbytes > chunk):
                yield run
                run, size = [], 0
            run.append(piece)
            size += piece.nbytes
    if run:
        yield run


def _pieces(part: Part, target: Tensor, scales: Tensor | None, chunk: int) -> Iterator[_Piece]:
    """A part, cut along its first stored dimension so that no piece exceeds a chunk. Long columns are read row by row."""
    into, shape = _place(part, target)
    if part.interleaved and scales is not None:
        scales = torch.unflatten(scales, 0, (-1, 2))
    kept = part.nbytes // max(shape[0], 1)
    row, singly = part.stride or kept, part.stride > 0 and kept >= SEGMENT
    step = 1 if singly else max(1, chunk // max(row, 1))
    if (kept if singly else row) > chunk:
        raise CheckpointError(f"one row of tensor {part.tensor} has {row} bytes, a read {chunk}", "raise LoadSettings.chunk")
    for first in range(0, shape[0], step):
        rows = min(step, shape[0] - first)
        yield _Piece(part, part.offset + first * row, (rows, *shape[1:]), into[first : first + rows], first, scales)


def _place(part: Part, target: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The place of a part in its target, its dimensions in the order of the file; and the stored shape in as many dimensions."""
    into, shape = target[part.index] if part.index else target, part.shape
    if part.interleaved:
        into = torch.unflatten(into, 0, (2, -1)).transpose(0, 1)  # [2 I, ...] -> [I, 2, ...]
        if part.transpose:
            return into.permute(2, 0, 1), (shape[0], shape[1] // 2, 2)
        return into, (shape[0] // 2, 2, *shape[1:])
    return (into.transpose(0, 1) if part.transpose else into), shape


def _store(piece: _Piece, data: memoryview, turned: Tensor) -> None:
    """Converts one piece into its place and checks that every value is finite. `turned`: bytes to transpose in, as many as are staged."""
    values = torch.frombuffer(data, dtype=DTYPES[piece.part.dtype])
    stride = piece.part.stride // values.element_size()
    values = values.as_strided(piece.shape, (stride, 1)) if stride else values.view(piece.shape)
    if piece.scales is not None and piece.part.scales is not None:
        source = piece.part.scales
        row, column = source.origin
        values = decode(source.kind, values, piece.scales, source.unit, row + piece.first, column)
    into = piece.into
    if into.dim() == 2 and into.stride(0) == 1 and into.stride(1) != 1:
        _store_by_columns(values, into, turned)
    else:
        into.copy_(values)
    if not _finite(values) or (into.dtype == torch.float16 and not _finite(into)):
        bad = int((~torch.isfinite(into)).sum())
        message = f"tensor {piece.part.tensor} in {piece.part.file} has {bad} non-finite values"
        raise CheckpointError(message, f"download {piece.part.file} again, or load with a wider dtype")


def _store_by_columns(values: Tensor, into: Tensor, turned: Tensor) -> None:
    """values [R, C] into a target of that shape whose columns are contiguous. copy_ transposes in blocks only without conversion, and
    integers a fifth faster than 16-bit floats. The transposed piece lies in `turned` where it fits (decoded ones are wider than stored):
    a fresh tensor each time is memory that the kernel has to clear each time."""
    if values.dtype == into.dtype and values.element_size() == 2:
        into.t().view(torch.int16).copy_(values.view(torch.int16).t())
        return
    rows, columns = values.shape
    if values.nbytes > turned.nbytes:
        into.t().copy_(values.t().contiguous())
        return
    across = turned[: values.nbytes].view(values.dtype).view(columns, rows)
    if values.element_size() == 2:
        across.view(torch.int16).copy_(values.view(torch.int16).t())
    else:
        across.copy_(values.t())
    into.t().copy_(across)


def _finite(values: Tensor) -> bool:
    low, high = torch.aminmax(values)  # both are NaN if any value is
    return math.isfinite(low) and math.isfinite(high)
