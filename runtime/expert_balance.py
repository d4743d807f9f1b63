"""From measured load to an expert placement with replicas: the interface and the two policies of DeepSeek's EPLB. Numpy only.

Hierarchical, when the router's expert groups divide by the nodes: groups are spread over the nodes, so that a token, whose experts lie
in few groups, is sent to few nodes; replicas and slots are then dealt within each node. Global otherwise: as if there were one node.
Both follow the rules published with EPLB (README of deepseek-ai/EPLB; its worked example is a test): a spare slot goes to the expert
with the most rows per replica, and the heaviest goes to the lightest pack with room (longest processing time first, Graham 1969).

Ours beyond that: two replicas of an expert do not share a GPU while another has room, and in the global policy not a node either, so
that more tokens find a replica on their own node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from runtime.placement import BadPlacement, Placement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Balance(NamedTuple):
    """The three maps, layer by layer. Slots are split evenly over the GPUs in order, GPUs over the nodes."""

    phy2log: Ints  # [L, S] the expert of each slot
    log2phy: Ints  # [L, E, X] the slots of each expert, -1 where it has fewer than X
    logcnt: Ints  # [L, E] slots of each expert


@dataclass(frozen=True, slots=True)
class _Shape:
    replicas: int
    groups: int
    nodes: int
    gpus: int


def rebalance_experts(weight: ArrayLike, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int) -> Balance:
    """`weight` [L, E] is the load of each expert; a layer without load is taken for an even one. Raises BadPlacement."""
    load = np.asarray(weight, dtype=np.float64)
    shape = _Shape(num_replicas, num_groups, num_nodes, num_gpus)
    _check(load, shape)
    slots = np.array([_layer(layer if layer.any() else np.ones_like(layer), shape) for layer in load], dtype=np.int64)
    return _maps(slots, load.shape[1])


def balanced(
    counts: Sequence[Sequence[float]], ranks: int, slots: int | None = None, hosts: int = 1, groups: int = 1, version: int = 0,
    source: str = "rebalance", reason: str = "balanced",
) -> Placement:  # fmt: skip
    """The placement for `counts[layer][expert]`; `slots` of a layer over all ranks, none to spare if not given; `groups` of experts that
    the router knows. Raises BadPlacement."""
    experts = len(counts[0]) if counts else 0
    found = rebalance_experts(counts, experts if slots is None else slots, groups, hosts, ranks).phy2log
    owned = np.sort(found.reshape(len(found), ranks, -1), axis=-1).reshape(found.shape)
    layers = tuple(tuple(int(expert) for expert in layer) for layer in owned)
    return Placement(version, layers, ranks, source, reason, hosts).checked(experts)


def _check(load: Floats, shape: _Shape) -> None:
    if load.ndim != 2 or not load.size or not np.isfinite(load).all() or load.min() < 0:
        raise BadPlacement("the load is no table of layers x experts with finite numbers from 0", "give weight[layer][expert]")
    experts = load.shape[1]
    if min(shape.replicas, shape.groups, shape.nodes, shape.gpus) < 1:
        sizes = f"{shape.replicas} slots, {shape.groups} groups, {shape.nodes} nodes, {shape.gpus} GPUs"
        raise BadPlacement(f"a placement of {sizes} is none", "each must be at least 1")
    if shape.replicas < experts:
        raise BadPlacement(f"{experts} experts cannot be placed in {shape.replicas} slots", "every expert needs at least one slot")
    if shape.replicas % shape.gpus:
        raise BadPlacement(f"{shape.replicas} slots cannot be split evenly over {shape.gpus} GPUs", "change the redundant experts")
    if shape.gpus % shape.nodes:
        raise BadPlacement(f"{shape.gpus} GPUs cannot be split evenly over {shape.nodes} nodes", "use as many GPUs on each node")
    if experts % shape.groups:
        message = f"{experts} experts cannot be split evenly into {shape.groups} groups"
        raise BadPlacement(message, "config.json says how many groups there are")


def _layer(load: Floats, shape: _Shape) -> list[int]:
    """The expert of every slot of one layer."""
    if shape.groups % shape.nodes:
        return _place(np.arange(len(load)), load, shape.replicas, _Packs(shape.gpus, shape.nodes))
    members = np.arange(len(load)).reshape(shape.groups, -1)  # [G, E / G]
    packs = _Packs(shape.nodes)
    packs.deal(np.arange(shape.groups), load[members].sum(axis=1))
    slots: list[int] = []
    for groups in packs.held:
        experts = members[groups].ravel()
        slots += _place(experts, load[experts], shape.replicas // shape.nodes, _Packs(shape.gpus // shape.nodes))
    return slots


def _place(experts: Ints, load: Floats, slots: int, gpus: _Packs) -> list[int]:
    """Replicates `experts` [n] with `load` [n] into `slots` slots and deals those to the GPUs: the expert of each slot, GPU by GPU."""
    copies = np.ones(len(load), dtype=np.int64)
    items = list(range(len(load)))
    for _ in range(slots - len(load)):
        most = int(np.argmax(load / copies))
        copies[most] += 1
        items.append(most)
    gpus.deal(experts[items], (load / copies)[items])
    return [expert for held in gpus.held for expert in held]


@dataclass(slots=True)
class _Packs:
    """Equally full packs, in `nodes` equal parts in order."""

    count: int
    nodes: int = 1
    held: list[list[int]] = field(default_factory=list)

    def deal(self, names: Ints, weights: Floats) -> None:
        """Heaviest first, each to the lightest pack that has room and, if there is one, none of that name."""
        room = len(names) // self.count
        self.held = [[] for _ in range(self.count)]
        if room == 1 and self.nodes == 1:  # nothing to even out: everybody keeps its place
            self.held = [[int(name)] for name in names]
            return
        load = [0.0] * self.count
        for item in np.argsort(-weights, kind="stable").tolist():
            name = int(names[item])
            nodes = {self._node(pack) for pack, held in enumerate(self.held) if name in held} if self.nodes > 1 else set()
            open_ = (pack for pack in range(self.count) if len(self.held[pack]) < room)
            pack = min(open_, key=lambda p: (name in self.held[p], self._node(p) in nodes, load[p], p))
            self.held[pack].append(name)
            load[pack] += float(weights[item])

    def _node(self, pack: int) -> int:
        return pack * self.nodes // self.count


def _maps(slots: Ints, experts: int) -> Balance:
    counts = np.stack([np.bincount(layer, minlength=experts) for layer in slots])
    places = np.full((*counts.shape, counts.max()), -1, dtype=np.int64)
    for layer, row in enumerate(slots.tolist()):
        seen = [0] * experts
        for slot, expert in enumerate(row):
            places[layer, expert, seen[expert]] = slot
            seen[expert] += 1
    return Balance(slots, places, counts)
