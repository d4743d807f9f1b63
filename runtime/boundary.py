"""The way from one pipeline stage to the next: a small list of tensors, whose shapes both ends know, in one message.

What crosses is the stream of hidden states and whatever else the layers behind it need: the frozen streams of attention residuals, and
the side outputs of the vision tower that are added after later layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.arch import ArchSpec
from runtime.batch import ForwardBatch, StepContext
from runtime.clock import Clock, HostClock

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Crossing:
    """Shapes: the running stream [T, H], a frozen one each [T, H], and [M, H] for every side output that is still to be added."""

    running: Shape
    frozen: list[Shape]
    side: list[Shape]

    @property
    def all(self) -> list[Shape]:
        return [self.running, *self.frozen, *self.side]


def crossing(arch: ArchSpec, layer: int, batch: ForwardBatch) -> Crossing:
    """What crosses in front of `layer`."""
    running = (batch.tokens.shape[0], arch.hidden)
    side: list[Shape] = []
    if arch.vision is not None and batch.image_rows is not None:
        side = [(batch.image_rows.shape[0], arch.hidden)] * max(0, len(arch.vision.deepstack) - layer)
    return Crossing(running, [running] * sum(spec.freezes for spec in arch.layers[:layer]), side)


class Boundary:
    """One end. `seq` numbers the messages: the same number at both ends is the same message. Peer 0 of its rows is the sender."""

    def __init__(self, name: str, peer: int, clock: Clock | None = None) -> None:
        self.name = name
        self.seq = 0
        self.clock: Clock = clock or HostClock()
        self._peer = peer  # global rank
        self._flying: list[tuple[Any, Tensor]] = []  # a buffer must live until it is sent

    def send(self, tensors: Sequence[Tensor], op: str, step: StepContext) -> None:
        """Does not wait for the other end; `settle` does."""
        packed = torch.cat([tensor.flatten() for tensor in tensors])
        if not packed.numel():
            return
        self.seq += 1
        enter = self.clock.mark() if step.detail else None
        self._flying.append((dist.isend(packed, dst=self._peer), packed))
        if enter is not None:
            self._record(enter, [0, packed.nbytes], [0, 0], op, step)

    def receive(self, shapes: Sequence[Shape], dtype: torch.dtype, device: torch.device, op: str, step: StepContext) -> list[Tensor]:
        """Waits for the other end."""
        sizes = [math.prod(shape) for shape in shapes]
        packed = torch.empty(sum(sizes), dtype=dtype, device=device)
        if packed.numel():
            self.seq += 1
            enter = self.clock.mark() if step.detail else None
            dist.recv(packed, src=self._peer)
            if enter is not None:
                self._record(enter, [0, 0], [packed.nbytes, 0], op, step)
        return [part.view(shape) for part, shape in zip(torch.split(packed, sizes), shapes, strict=True)]

    def settle(self) -> None:
        """Waits until everything sent has left."""
        for work, _ in self._flying:
            work.wait()
        self._flying.clear()

    def _record(self, enter: Any, sent: list[int], received: list[int], op: str, step: StepContext) -> None:
        if step.writers is None:
            return
        write, seq, clock = step.writers.collective, self.seq, self.clock.name
        number, rank, name = step.step, step.rank, self.name

        def deliver(times: list[int]) -> None:
            write(number, rank, name, seq, None, op, times[0], times[1], sent, received, clock)

        self.clock.deliver([enter, self.clock.mark()], deliver)
