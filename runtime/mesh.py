"""The process groups of a layout: which of them this rank belongs to, and its neighbours along the pipeline.

Groups are named ep, tp and replica where there is one of a kind, and ep0, ep1 ... where there are several; `pp0` leads from stage 0 to
stage 1. The pair (group, seq) therefore names one collective of the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from runtime.boundary import Boundary
from runtime.clock import Clock
from runtime.layout import BadLayout, Coordinates, Layout, split
from runtime.parallel import Group


@dataclass(frozen=True, slots=True)
class Mesh:
    """This rank's place. Expert parallelism spans the dp x tp ranks of a stage."""

    rank: int
    layout: Layout
    ep: Group
    tp: Group
    replica: Group  # the ranks that compute the same sequences, its scheduling rank first; small tensors on the CPU
    world: Group  # small tensors on the CPU
    previous: Boundary | None = None  # from the stage before
    next: Boundary | None = None  # to the stage behind
    results: Boundary | None = None  # between the last stage's first lane, which samples, and the replica's first rank

    @property
    def ranks(self) -> int:
        return self.layout.world

    @property
    def place(self) -> Coordinates:
        return self.layout.place(self.rank)

    @property
    def leader(self) -> int:
        """The rank that schedules for this one."""
        return self.layout.leader(self.rank)

    @property
    def leads(self) -> bool:
        return self.rank == self.leader

    @property
    def samples(self) -> bool:
        """Whether this rank draws the next tokens: the first lane of the last stage."""
        return self.place.pp == self.layout.pp - 1 and self.place.tp == 0

    @classmethod
    def alone(cls) -> Mesh:
        return cls(0, Layout(), Group.alone("ep"), Group.alone("tp"), Group.alone("replica"), Group.alone("world"))

    @classmethod
    def join(cls, layout: Layout) -> Mesh:
        """From the initialised torch.distributed world. A collective: every rank calls it with the same layout. BadLayout."""
        rank, world = dist.get_rank(), dist.get_world_size()
        if world != layout.world:
            raise BadLayout(f"the layout has {layout.world} ranks, {world} were started", "start pp x dp x tp ranks")
        at = layout.place(rank)
        stages = [list(layout.stage_ranks(stage)) for stage in range(layout.pp)]
        lanes = [[layout.rank(p, d, t) for t in range(layout.tp)] for p in range(layout.pp) for d in range(layout.dp)]
        replicas = [[layout.rank(p, d, t) for p in range(layout.pp) for t in range(layout.tp)] for d in range(layout.dp)]
        links = _links(layout)
        return cls(
            rank,
            layout,
            _group("ep", stages, rank),
            _group("tp", lanes, rank),
            _group("replica", replicas, rank),
            Group("world", rank, world, dist.group.WORLD),
            links.get((layout.rank(at.pp - 1, at.dp, at.tp), rank)) if at.pp else None,
            links.get((rank, layout.rank(at.pp + 1, at.dp, at.tp))) if at.pp + 1 < layout.pp else None,
            _results(layout, rank),
        )

    @classmethod
    def current(cls, layout: Layout | None = None) -> Mesh:
        """The torch.distributed world if there is one of several ranks, else this process alone. Default: experts over all ranks."""
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        return cls.join(layout or Layout(dp=dist.get_world_size())) if several else cls.alone()

    def lane_tokens(self, tokens: int) -> int:
        """How many of `tokens` tokens of the replica this rank routes to experts."""
        part = split(tokens, self.place.tp, self.layout.tp)
        return int(part.stop - part.start)

    def use(self, clock: Clock, device: torch.device) -> None:
        """The clock and the device of the groups that carry the model's own tensors."""
        for group in (self.ep, self.tp):
            group.clock, group.device = clock, device
        for boundary in (self.previous, self.next):
            if boundary is not None:
                boundary.clock = clock

    def settle(self) -> None:
        """Waits until what was sent along the pipeline has left."""
        for boundary in (self.next, self.results):
            if boundary is not None:
                boundary.settle()


def _group(kind: str, members: Sequence[Sequence[int]], rank: int) -> Group:
    """The group of `members` that holds `rank`. All ranks make all groups, in this order, as torch.distributed wants it."""
    found = Group.alone(kind)
    for index, ranks in enumerate(members):
        name = kind if len(members) == 1 else f"{kind}{index}"
        made = None
        if len(ranks) > 1:
            made = dist.group.WORLD if len(ranks) == dist.get_world_size() else dist.new_group(list(ranks))
        if rank in ranks:
            found = Group(name, ranks.index(rank), len(ranks), made)
    return found


def _links(layout: Layout) -> dict[tuple[int, int], Boundary]:
    """Ends of this rank, by (sender, receiver)."""
    rank = dist.get_rank()
    links = {}
    for stage in range(layout.pp - 1):
        for lane in range(layout.ep):
            sender, receiver = stage * layout.ep + lane, (stage + 1) * layout.ep + lane
            name = f"pp{stage}" if layout.ep == 1 else f"pp{stage}.{lane}"
            if rank in (sender, receiver):
                links[sender, receiver] = Boundary(name, receiver if rank == sender else sender)
    return links


def _results(layout: Layout, rank: int) -> Boundary | None:
    if layout.pp == 1:
        return None
    at = layout.place(rank)
    name = "results" if layout.dp == 1 else f"results{at.dp}"
    leader, sampler = layout.leader(rank), layout.rank(layout.pp - 1, at.dp, 0)
    if rank == leader:
        return Boundary(name, sampler)
    return Boundary(name, leader) if rank == sampler else None
