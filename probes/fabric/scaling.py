"""The model's own dispatch over growing groups of ranks: what expert parallelism costs as it spreads. Imports torch."""

from __future__ import annotations

import statistics
import time

import msgspec
import torch
import torch.distributed as dist

from probes.fabric.answer import Scale

REPEATS = 7


class Rows(msgspec.Struct, frozen=True):
    """What one rank dispatches in one layer: `tokens` tokens to `top_k` experts each, rows of `row` bytes, evenly over the group."""

    tokens: int
    top_k: int
    row: int

    def to_each(self, ranks: int) -> int:
        """Bytes to one member of a group."""
        return max(1, self.tokens * self.top_k // ranks) * self.row


def measure(rows: Rows, hosts: list[str], device: torch.device) -> list[Scale]:
    """Groups of 1, 2, 4 ... and all ranks. hosts: of every rank. A collective: every rank calls it; the same on all."""
    world, rank = dist.get_world_size(), dist.get_rank()
    sizes = sorted({*(1 << shift for shift in range(world.bit_length()) if 1 << shift <= world), world})
    found = []
    for ranks in sizes:
        group = dist.new_group(list(range(ranks)))
        each = rows.to_each(ranks)
        seconds = torch.zeros(1, dtype=torch.float64, device=device)
        if rank < ranks:
            seconds.fill_(_dispatch(group, each, ranks, device))
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        found.append(Scale(ranks, len(set(hosts[:ranks])), each * (ranks - 1), float(seconds)))
    return found


def _dispatch(group: dist.ProcessGroup, each: int, ranks: int, device: torch.device) -> float:
    out, sent = (torch.zeros(each * ranks, dtype=torch.uint8, device=device) for _ in range(2))
    taken = []
    for _ in range(REPEATS):
        dist.barrier(group)
        began = time.perf_counter()
        dist.all_to_all_single(out, sent, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
