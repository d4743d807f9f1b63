"""The mesh of ranks and what each of them holds: pipeline stages, data-parallel replicas, tensor-parallel ranks. Torch-free.

Rank = (stage * dp + replica) * tp + lane: the ranks of a tensor-parallel group are neighbours, so that they share a host, and the
ranks of a stage are neighbours too: they are one expert-parallel group. A replica is the pp * tp ranks that compute the same sequences;
its first rank (stage 0, lane 0) schedules for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.arch import AnyAttention, ArchSpec, AttentionSpec
from runtime.layout_rules import even_stages, unsplittable
from traces.errors import UsageError


class BadLayout(UsageError):
    """A mesh that the model, or the number of ranks, does not allow."""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A rank's place; `ep` is its number in the expert-parallel group of its stage."""

    pp: int
    dp: int
    tp: int
    ep: int


def split(count: int, lane: int, lanes: int) -> slice:
    """A lane's part of `count` equal things; the last lanes may get fewer, or none."""
    each = -(-count // lanes)
    return slice(min(lane * each, count), min((lane + 1) * each, count))


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a model that one rank holds. `lane` of `lanes` is its place in the tensor-parallel group."""

    layers: range  # layers of its stage, indices in the model
    first: bool  # its stage begins with the embedding
    last: bool  # its stage ends with the head
    lane: int
    lanes: int
    ep: int  # which expert slots
    vision: bool  # the vision tower is on the first rank of a replica

    def split(self, count: int) -> slice:
        """This lane's part of `count` equal things."""
        return split(count, self.lane, self.lanes)

    def attention(self, spec: AnyAttention) -> AnyAttention:
        """What this lane computes of a layer's attention."""
        if self.lanes == 1:
            return spec
        if isinstance(spec, AttentionSpec):
            kept = self.kv_heads(spec.kv_heads)
            return replace(spec, heads=spec.heads // self.lanes, kv_heads=kept.stop - kept.start)
        return replace(spec, heads=spec.heads // self.lanes)

    def attentions(self, arch: ArchSpec) -> list[AnyAttention]:
        """Of the layers of its stage."""
        return [self.attention(arch.layers[layer].attention) for layer in self.layers]

    def kv_heads(self, count: int) -> slice:
        """Its key and value heads: a part of them, or one that several lanes hold when there are more lanes than heads."""
        if count >= self.lanes:
            return self.split(count)
        head = self.lane * count // self.lanes
        return slice(head, head + 1)


@dataclass(frozen=True, slots=True)
class Layout:
    """`stages` gives the layers of each pipeline stage; empty: split evenly, longer stages first."""

    pp: int = 1
    dp: int = 1
    tp: int = 1
    stages: tuple[int, ...] = ()

    @classmethod
    def of(cls, tp: int, pp: int, dp: int | None, ep: int | None, stages: Sequence[int] | None = None) -> Layout:
        """From what was asked for: ep = dp * tp, so that one of ep and dp can be left out. BadLayout when they contradict."""
        for name, value in (("tp", tp), ("pp", pp), ("dp", dp), ("ep", ep)):
            if value is not None and value < 1:
                raise BadLayout(f"{name} must be at least 1, not {value}")
        if dp is None and ep is not None and ep % tp:
            raise BadLayout(f"--ep {ep} is no multiple of --tp {tp}", _EP)
        dp = dp if dp is not None else (ep or tp) // tp
        if ep is not None and ep != dp * tp:
            raise BadLayout(f"--ep {ep} differs from --dp {dp} times --tp {tp}", _EP)
        if stages and len(stages) != pp:
            raise BadLayout(f"--stage-layers names {len(stages)} stages, --pp {pp}", "give the number of layers of every stage")
        return cls(pp, dp, tp, tuple(stages or ()))

    @property
    def ep(self) -> int:
        """Ranks of a stage, over which the experts of its layers are split."""
        return self.dp * self.tp

    @property
    def world(self) -> int:
        return self.pp * self.dp * self.tp

    @property
    def leaders(self) -> list[int]:
        """The first rank of every replica."""
        return [dp * self.tp for dp in range(self.dp)]

    def sizes(self) -> dict[str, int]:
        return {"tp": self.tp, "pp": self.pp, "dp": self.dp, "ep": self.ep}

    def place(self, rank: int) -> Coordinates:
        stage, ep = divmod(rank, self.ep)
        return Coordinates(stage, ep // self.tp, ep % self.tp, ep)

    def rank(self, pp: int, dp: int, tp: int) -> int:
        return (pp * self.dp + dp) * self.tp + tp

    def leader(self, rank: int) -> int:
        """The first rank of the replica that `rank` belongs to."""
        return self.place(rank).dp * self.tp

    def stage_ranks(self, stage: int) -> range:
        return range(stage * self.ep, (stage + 1) * self.ep)

    def layers(self, stage: int, layers: int) -> range:
        """Layers of a stage, of a model with `layers` layers."""
        sizes = self.stages or even_stages(layers, self.pp)
        first = sum(sizes[:stage])
        return range(first, first + sizes[stage])

    def most_moe_layers(self, arch: ArchSpec) -> int:
        """Of any stage."""
        stages = (self.layers(stage, len(arch.layers)) for stage in range(self.pp))
        return max(sum(layer in stage for layer in arch.moe_layers) for stage in stages)

    def share(self, rank: int, layers: int) -> Share:
        """What `rank` holds of a model with `layers` layers."""
        at = self.place(rank)
        first = at.pp == 0
        return Share(self.layers(at.pp, layers), first, at.pp == self.pp - 1, at.tp, self.tp, at.ep, first and at.tp == 0)

    def checked(self, arch: ArchSpec) -> Layout:
        """Itself, or BadLayout saying why the model cannot be laid out so."""
        layers = len(arch.layers)
        if self.pp > layers:
            raise BadLayout(f"{self.pp} stages are more than the {layers} layers of the model", f"choose --pp up to {layers}")
        if self.stages and (sum(self.stages) != layers or min(self.stages) < 1):
            message = f"--stage-layers {','.join(map(str, self.stages))} does not cover the {layers} layers of the model"
            raise BadLayout(message, "every stage needs a layer, and every layer a stage")
        if self.tp > 1:
            self._check_heads(arch)
        return self

    def _check_heads(self, arch: ArchSpec) -> None:
        for layer in arch.layers:
            spec = layer.attention
            kv_heads = spec.kv_heads if isinstance(spec, AttentionSpec) else None
            why = unsplittable(self.tp, spec.heads, kv_heads, layer.dense_width if layer.moe is None else None)
            if why is not None:
                raise BadLayout(*why)

    def hosts_of_a_stage(self, nodes: int) -> int:
        """Hosts over which the experts of a stage lie, when `nodes` hosts have equally many ranks; 1 also where stages share hosts."""
        per_host = self.world // nodes
        return self.ep // per_host if self.ep % per_host == 0 else 1

    def split_hosts(self, ranks_per_host: int) -> list[int]:
        """First ranks of the tensor-parallel groups that do not lie on one host, when each has `ranks_per_host` ranks."""
        firsts = range(0, self.world, self.tp)
        return [first for first in firsts if first // ranks_per_host != (first + self.tp - 1) // ranks_per_host]


_EP = "experts are split over the dp x tp ranks of a stage: give --tp and --dp, and leave --ep out"
