"""One scheduler for a replica: its first rank tells the others what to compute, in one small broadcast a step.

Image embeddings, which only the first rank has, follow to the lanes of its own stage as tensors; the stages behind get theirs from the
stage before them.
"""

from __future__ import annotations

import msgspec
import numpy as np
import torch
from torch import Tensor

from runtime.arch import ArchSpec
from runtime.batch import ForwardBatch, StepContext
from runtime.mesh import Mesh
from runtime.micro_batch import MicroBatch
from runtime.sampler import Wanted

FIRST = 8 << 10  # bytes of the first message: enough for a step of decoding, so that most steps need no second one
LENGTH = 8
_NO_DETAIL = StepContext(step=-1)


class BatchFrame(msgspec.Struct, frozen=True, array_like=True):
    """A MicroBatch on its way. The arrays are int64."""

    tokens: bytes
    positions: bytes  # [3, T], or [T] for plain text
    query_starts: bytes
    cached: bytes
    tables: bytes  # one behind the other
    table_sizes: list[int]
    logits_at: bytes
    state_slots: bytes | None
    image_rows: bytes | None
    wanted: list[Wanted]
    prefill: int
    decode: int
    context: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[BatchFrame])


class Sharing:
    """Of one replica. All its ranks call `share` for the same step."""

    def __init__(self, mesh: Mesh, arch: ArchSpec, dtype: torch.dtype, device: torch.device) -> None:
        self._mesh = mesh
        self._arch = arch
        self._dtype, self._device = dtype, device

    def share(self, planned: list[MicroBatch]) -> list[MicroBatch]:
        """`planned` of the first rank, on every rank; what the others pass is not looked at."""
        group = self._mesh.replica
        if group.size == 1:
            return planned
        if group.rank:
            return [self._filled(_unpack(frame)) for frame in _decoder.decode(self._exchange(b""))]
        self._exchange(_encoder.encode([_pack(micro_batch) for micro_batch in planned]))
        return [self._filled(micro_batch) for micro_batch in planned]

    def _exchange(self, body: bytes) -> bytes:
        """The first rank's bytes, on every rank."""
        group = self._mesh.replica
        first = torch.zeros(FIRST, dtype=torch.uint8)
        if not group.rank:
            head = len(body).to_bytes(LENGTH, "little") + body[: FIRST - LENGTH]
            first[: len(head)] = _bytes(head)
        group.broadcast(first, "batch", _NO_DETAIL)
        raw = first.numpy().tobytes()
        size = int.from_bytes(raw[:LENGTH], "little")
        if size <= FIRST - LENGTH:
            return raw[LENGTH : LENGTH + size]
        rest = _bytes(body[FIRST - LENGTH :]) if not group.rank else torch.empty(size - FIRST + LENGTH, dtype=torch.uint8)
        group.broadcast(rest, "batch", _NO_DETAIL)
        return raw[LENGTH:] + rest.numpy().tobytes()

    def _filled(self, micro_batch: MicroBatch) -> MicroBatch:
        """With the image embeddings, on the lanes of the first stage."""
        batch, group = micro_batch.batch, self._mesh.tp
        if batch.image_rows is None or self._arch.vision is None or self._mesh.place.pp or group.size == 1:
            return micro_batch
        layers = 1 + len(self._arch.vision.deepstack)
        shape = (layers, batch.image_rows.shape[0], self._arch.hidden)
        if group.rank:
            packed = torch.empty(shape, dtype=self._dtype, device=self._device)
        else:
            assert batch.image_embeds is not None
            packed = torch.stack([batch.image_embeds, *batch.deepstack]).to(self._device, self._dtype)
        group.broadcast(packed, "images", _NO_DETAIL)
        batch.image_embeds, *batch.deepstack = packed.unbind(0)
        return micro_batch


def _pack(micro_batch: MicroBatch) -> BatchFrame:
    batch = micro_batch.batch
    text = bool((batch.positions == batch.positions[:1]).all())
    tables = torch.cat(batch.block_tables) if batch.block_tables else torch.zeros(0, dtype=torch.int64)
    return BatchFrame(
        _raw(batch.tokens), _raw(batch.positions[0] if text else batch.positions), _raw(batch.query_starts), _raw(batch.cached),
        _raw(tables), [table.shape[0] for table in batch.block_tables], _raw(batch.logits_at),
        None if batch.state_slots is None else _raw(batch.state_slots),
        None if batch.image_rows is None else _raw(batch.image_rows),
        micro_batch.wanted, micro_batch.prefill, micro_batch.decode, micro_batch.context,
    )  # fmt: skip


def _unpack(frame: BatchFrame) -> MicroBatch:
    tokens, positions = _ids(frame.tokens), _ids(frame.positions)
    count = tokens.shape[0]
    batch = ForwardBatch(
        tokens=tokens,
        positions=positions.expand(3, -1) if positions.shape[0] == count else positions.view(3, count),
        query_starts=_ids(frame.query_starts),
        cached=_ids(frame.cached),
        block_tables=list(torch.split(_ids(frame.tables), frame.table_sizes)),
        logits_at=_ids(frame.logits_at),
        image_rows=None if frame.image_rows is None else _ids(frame.image_rows),
        state_slots=None if frame.state_slots is None else _ids(frame.state_slots),
    )
    return MicroBatch(batch, frame.wanted, frame.prefill, frame.decode, frame.context)


def _raw(values: Tensor) -> bytes:
    return values.cpu().contiguous().numpy().tobytes()


def _ids(raw: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(raw, dtype=np.int64).copy())


def _bytes(raw: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint8).copy())
