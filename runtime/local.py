"""A model of one rank in this process, without server and scheduler: what validation and taps drive."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probes.checkpoint import Checkpoint
from runtime.arch import read_arch
from runtime.batch import ForwardBatch, StepContext
from runtime.load_window import ExpertCounter
from runtime.mesh import Mesh
from runtime.model import MoeModel
from traces.errors import UsageError

BLOCK = 16  # tokens of a KV block, as `workbench serve` has it by default


def load_local(path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu", kind: type[MoeModel] = MoeModel) -> MoeModel:
    """Loads a checkpoint folder by the same plan and loader as a server. CheckpointError for what cannot be served, UsageError for a
    device that cannot be used."""
    check_device(device)
    checkpoint = Checkpoint.open(path)
    return kind.load(checkpoint, read_arch(checkpoint.config), Mesh.alone(), device=device, dtype=dtype)


def check_device(device: str) -> None:
    """UsageError for a device that this torch cannot use."""
    fault = device_fault(device)
    if fault:
        raise UsageError(f"this torch cannot use the device {device!r}: {fault}", "cpu, cuda or cuda:N")


def device_fault(device: str | torch.device) -> str:
    """Why no value can be stored on a device and read back, in a line; empty where it can."""
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, ImportError) as error:  # torch raises each of them, by the kind of device
        return str(error).strip().split("\n")[0] or type(error).__name__
    return ""


def check_ids(ids: Sequence[int], vocab: int) -> None:
    """UsageError for an empty list, and for ids that the embedding has no row for."""
    if not ids:
        raise UsageError("no token ids were given", "give at least one")
    outside = [i for i in ids if not 0 <= i < vocab]
    if outside:
        raise UsageError(f"token id {outside[0]} is outside the vocabulary of {vocab}", "use the tokenizer that belongs to the model")


class LocalSequence:
    """One sequence in a cache of its own."""

    def __init__(
        self, model: MoeModel, room: int, float8: bool = False, scattered: bool = False, counter: ExpertCounter | None = None
    ) -> None:
        """`room`: most tokens it will hold; UsageError later if more are fed. `scattered`: its blocks lie in no order, as after a while
        of serving; else in one run, which is read in place."""
        self.model = model
        blocks = max(1, -(-room // BLOCK))
        self.kv = model.kv_cache(blocks, BLOCK, 1, float8)
        table = self.kv.allocator.allocate(blocks)
        assert table is not None
        if scattered:
            random.Random(blocks).shuffle(table)
        self.table = torch.tensor(table, device=model.device)
        self.room = blocks * BLOCK
        self.cached = 0
        self.counter = counter
        self.rows: list[list[int]] = []  # per step, per MoE layer: rows that experts computed

    def feed(self, ids: Sequence[int], start: int | None = None, positions: Tensor | None = None, **picture: Any) -> Tensor:
        """The next tokens -> their logits [n, V]. `start`: position of the first one, where it is not the number of cached tokens;
        `positions` [3, n]: of each, where they do not count up; `picture`: what a ForwardBatch takes of images."""
        check_ids(ids, self.model.arch.vocab)
        count = len(ids)
        if self.cached + count > self.room:
            raise UsageError(f"{self.cached + count} tokens in a cache for {self.room}", "give the sequence more room")
        first = self.cached if start is None else start
        batch = ForwardBatch(
            tokens=torch.tensor(ids, dtype=torch.int64),
            positions=torch.arange(first, first + count).expand(3, -1) if positions is None else positions,
            query_starts=torch.tensor([0, count]),
            cached=torch.tensor([self.cached]),
            block_tables=[self.table],
            logits_at=torch.arange(count),
            state_slots=torch.tensor([0]),
            **picture,
        )
        step = StepContext(len(self.rows) + 1, counter=self.counter)
        if self.counter is not None:
            self.counter.begin(step.step, count)
        logits = self.model.forward(batch, self.kv, step)
        self.rows.append(step.rows_received)
        self.cached += count
        return logits

    def feed_in_chunks(self, ids: Sequence[int], size: int) -> Tensor:
        """The same, `size` tokens a step -> logits of all [n, V]."""
        return torch.cat([self.feed(ids[i : i + size]) for i in range(0, len(ids), size)])


def greedy(model: MoeModel, ids: Sequence[int], count: int, float8: bool = False) -> list[int]:
    """The `count` tokens of highest logit after a prompt, decoded one by one over the cache. Stops at no token."""
    sequence = LocalSequence(model, len(ids) + count, float8)
    drawn = [int(sequence.feed(ids)[-1].argmax())]
    while len(drawn) < count:
        drawn.append(int(sequence.feed(drawn[-1:])[-1].argmax()))
    return drawn
