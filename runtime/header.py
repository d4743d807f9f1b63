"""The step header: a tiny all-gather that begins every step, by which all ranks agree on what the step is.

int64 per rank: [tokens, stop, changes, wake, entered, micro-batches, rows received per MoE layer in the step before].
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from runtime.batch import StepContext
from runtime.parallel import Group

FIXED = 6
_NO_DETAIL = StepContext(step=-1)


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the header told; lists are indexed by rank."""

    tokens: list[int]  # tokens of the step that follows, of the replicas that these ranks lead
    stop: bool  # every rank has been told to stop
    changes: int  # staged changes that every rank has read
    pending: bool  # some rank has read a frame that another has not: nobody may go to sleep
    entered: list[int]  # when each rank came, epoch ns
    rows: list[list[int]]  # rows received per MoE layer of its stage in the step before
    enter: int  # own times, epoch ns
    exit: int
    seq: int  # number of the collective in its group
    bytes: int  # to and from each peer
    micro_batches: int = 1  # in which the step is computed: as many as any rank wants


class Header:
    """`group` carries small tensors on the CPU; `moe_layers` is the largest number in any stage."""

    def __init__(self, group: Group, moe_layers: int) -> None:
        self.group = group
        self._layers = moe_layers
        self._mine = torch.zeros(FIXED + moe_layers, dtype=torch.int64)

    def exchange(self, tokens: int, stop: bool, changes: int, wake: int, rows: list[int], micro_batches: int = 1) -> Agreed:
        """Blocks until all ranks are here. `rows` may be empty: no step before, or no MoE layer."""
        enter = time.time_ns()
        self._mine.zero_()
        self._mine[:FIXED] = torch.tensor([tokens, stop, changes, wake, enter, micro_batches], dtype=torch.int64)
        if rows:
            self._mine[FIXED : FIXED + len(rows)] = torch.tensor(rows, dtype=torch.int64)
        gathered: list[list[int]] = self.group.all_gather(self._mine, "header", _NO_DETAIL).tolist()
        counts, stops, read, wakes, entered, wanted = (list(column) for column in zip(*(row[:FIXED] for row in gathered), strict=True))
        return Agreed(
            tokens=counts,
            stop=all(stops),
            changes=min(read),
            pending=len(set(wakes)) > 1 or len(set(read)) > 1 or len(set(stops)) > 1,
            entered=entered,
            rows=[row[FIXED:] for row in gathered],
            enter=enter,
            exit=time.time_ns(),
            seq=self.group.seq,
            bytes=self._mine.nbytes,
            micro_batches=max(wanted),
        )
