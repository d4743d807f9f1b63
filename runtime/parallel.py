"""Process groups: who exchanges what with whom, counted and timed.

A group of one rank needs no torch.distributed; it makes the same calls and records the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.batch import StepContext
from runtime.clock import Clock, HostClock


@dataclass(slots=True)
class Flight:
    """A collective on its way. What is sent must not change before `wait`."""

    _out: Tensor
    _sent: Tensor
    _work: dist.Work | None  # None: there is nobody to wait for
    landed: Callable[[], None] | None = None

    def wait(self) -> Tensor:
        """The rows received. Called once."""
        if self._work is not None:
            self._work.wait()
        if self.landed is not None:
            self.landed()
        return self._out


class Group:
    """Some ranks. `seq` numbers their collectives: the same number on every rank is the same collective."""

    def __init__(self, name: str, rank: int, size: int, process_group: dist.ProcessGroup | None = None, clock: Clock | None = None) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self.seq = 0
        self.clock: Clock = clock or HostClock()
        self.device = torch.device("cpu")  # where the tensors of its collectives live
        self._process_group = process_group

    @classmethod
    def alone(cls, name: str = "ep") -> Group:
        return cls(name, 0, 1)

    def all_to_all(self, rows: Tensor, sent: list[int], received: list[int], op: str, layer: int | None, step: StepContext) -> Tensor:
        """Sends `sent[p]` leading rows to each peer p in order and returns the rows received, in order of peer.

        rows [sum(sent), ...] contiguous -> [sum(received), ...]. Exact splits: nothing is padded, nothing dropped.
        """
        return self.start_all_to_all(rows, sent, received, op, layer, step).wait()

    def start_all_to_all(self, rows: Tensor, sent: list[int], received: list[int], op: str, layer: int | None, step: StepContext) -> Flight:
        """The same, without waiting: what is computed before `wait` overlaps it."""
        self.seq += 1
        enter = self.clock.mark() if step.detail else None
        if self.size == 1:
            flight = Flight(rows, rows, None)
        else:
            out = rows.new_empty((sum(received), *rows.shape[1:]))
            flight = Flight(out, rows, dist.all_to_all_single(out, rows, received, sent, group=self._process_group, async_op=True))
        if enter is not None:
            width, seq = rows.element_size() * math.prod(rows.shape[1:]), self.seq
            bytes_ = [n * width for n in sent], [n * width for n in received]
            flight.landed = lambda: self._record(enter, *bytes_, op, layer, step, seq)
        return flight

    def all_gather(self, values: Tensor, op: str, step: StepContext) -> Tensor:
        """values [N] of every rank -> [size, N]."""
        self.seq += 1
        enter = self.clock.mark() if step.detail else None
        out = values.new_empty((self.size, *values.shape))
        if self.size == 1:
            out[0] = values
        else:
            dist.all_gather(list(out.unbind(0)), values, group=self._process_group)
        if enter is not None:
            nbytes = [values.nbytes] * self.size
            self._record(enter, nbytes, nbytes, op, None, step)
        return out

    def all_reduce(self, values: Tensor, op: str, layer: int | None, step: StepContext) -> Tensor:
        """The sum over the ranks, in place. All ranks get the same bits: gloo and NCCL reduce every element once and pass it on."""
        if self.size == 1 or not values.numel():
            return values
        self.seq += 1
        enter = self.clock.mark() if step.detail else None
        dist.all_reduce(values, group=self._process_group)
        if enter is not None:
            nbytes = [values.nbytes] * self.size
            self._record(enter, nbytes, nbytes, op, layer, step)
        return values

    def gather_rows(self, rows: Tensor, count: int, op: str, layer: int | None, step: StepContext) -> Tensor:
        """Each rank's rows of `count` ([n, ...] as `Share.split` deals them) -> all of them [count, ...], on every rank."""
        if self.size == 1 or not count or not math.prod(rows.shape[1:]):
            return rows if self.size == 1 else rows.new_empty(count, *rows.shape[1:])
        self.seq += 1
        enter = self.clock.mark() if step.detail else None
        each = -(-count // self.size)
        mine = rows.contiguous()
        if rows.shape[0] < each:
            mine = rows.new_zeros(each, *rows.shape[1:])
            mine[: rows.shape[0]] = rows
        out = rows.new_empty(self.size, *mine.shape)
        dist.all_gather(list(out.unbind(0)), mine, group=self._process_group)
        if enter is not None:
            nbytes = [mine.nbytes] * self.size
            self._record(enter, nbytes, nbytes, op, layer, step)
        return out.flatten(0, 1)[:count]

    def broadcast(self, values: Tensor, op: str, step: StepContext) -> Tensor:
        """What the first rank of the group has, to all of them; in place."""
        if self.size == 1:
            return values
        self.seq += 1
        enter = self.clock.mark() if step.detail else None
        dist.broadcast(values, group_src=0, group=self._process_group)
        if enter is not None:
            whole, none = [values.nbytes] * self.size, [0] * self.size
            received = [values.nbytes, *none[1:]] if self.rank else none
            self._record(enter, none if self.rank else [0, *whole[1:]], received, op, None, step)
        return values

    def _record(
        self, enter: Any, sent: list[int], received: list[int], op: str, layer: int | None, step: StepContext, seq: int | None = None
    ) -> None:
        if step.writers is None:
            return
        write, clock = step.writers.collective, self.clock.name
        seq = self.seq if seq is None else seq
        number, rank, name = step.step, step.rank, self.name

        def deliver(times: list[int]) -> None:
            write(number, rank, name, seq, layer, op, times[0], times[1], sent, received, clock)

        self.clock.deliver([enter, self.clock.mark()], deliver)
