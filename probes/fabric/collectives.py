"""Every collective that a back end has, on integers whose results are known without communication. Imports torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

SIZES = (1, 1_000, 65_537)  # elements: one, not a multiple of anything, and more than one packet of every transport

Test = Callable[[int, int, int, torch.device], bool]


def _values(rank: int, elements: int, device: torch.device) -> Tensor:
    """Integers that differ by rank and by place, small enough that sums are exact in int64."""
    return torch.arange(elements, dtype=torch.int64, device=device) * 7 + rank * 1_000_003


def all_reduce(rank: int, world: int, elements: int, device: torch.device) -> bool:
    mine = _values(rank, elements, device)
    dist.all_reduce(mine)
    return torch.equal(mine, sum((_values(r, elements, device) for r in range(1, world)), _values(0, elements, device)))


def all_gather(rank: int, world: int, elements: int, device: torch.device) -> bool:
    out = [torch.empty(elements, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(out, _values(rank, elements, device))
    return all(torch.equal(out[r], _values(r, elements, device)) for r in range(world))


def reduce_scatter(rank: int, world: int, elements: int, device: torch.device) -> bool:
    out = torch.empty(elements, dtype=torch.int64, device=device)
    dist.reduce_scatter(out, [_values(rank + 10 * target, elements, device) for target in range(world)])
    wanted = sum((_values(r + 10 * rank, elements, device) for r in range(1, world)), _values(10 * rank, elements, device))
    return torch.equal(out, wanted)


def broadcast(rank: int, world: int, elements: int, device: torch.device) -> bool:
    root = world - 1
    mine = _values(rank, elements, device)
    dist.broadcast(mine, root)
    return torch.equal(mine, _values(root, elements, device))


def all_to_all_uneven(rank: int, world: int, elements: int, device: torch.device) -> bool:
    """Rank r sends (r + p) mod 3 shares of `elements` to peer p: some splits are zero."""
    sent = [(rank + peer) % 3 * elements for peer in range(world)]
    received = [(peer + rank) % 3 * elements for peer in range(world)]
    pieces = [_values(rank * 100 + peer, n, device) for peer, n in enumerate(sent)]
    out = torch.empty(sum(received), dtype=torch.int64, device=device)
    dist.all_to_all_single(out, torch.cat(pieces), received, sent)
    wanted = torch.cat([_values(peer * 100 + rank, n, device) for peer, n in enumerate(received)])
    return torch.equal(out, wanted)


def send_receive(rank: int, world: int, elements: int, device: torch.device) -> bool:
    """Round a ring."""
    out = torch.empty(elements, dtype=torch.int64, device=device)
    sending = dist.isend(_values(rank, elements, device), (rank + 1) % world)
    dist.recv(out, (rank - 1) % world)
    if sending is not None:
        sending.wait()
    return torch.equal(out, _values((rank - 1) % world, elements, device))


def sub_group(rank: int, world: int, elements: int, device: torch.device) -> bool:
    """Even and odd ranks add up by themselves."""
    groups = [dist.new_group(list(range(parity, world, 2))) for parity in range(min(2, world))]
    mine = _values(rank, elements, device)
    dist.all_reduce(mine, group=groups[rank % 2])
    members = range(rank % 2, world, 2)
    wanted = torch.zeros(elements, dtype=torch.int64, device=device)
    for member in members:
        wanted += _values(member, elements, device)
    return torch.equal(mine, wanted)


TESTS: dict[str, Test] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "broadcast": broadcast,
    "all_to_all_uneven": all_to_all_uneven,
    "send_receive": send_receive,
    "sub_group": sub_group,
}
