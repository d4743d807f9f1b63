"""The least time a decode step can take: what must be read, computed and sent, at the bandwidths given and with nothing in the way.

These are floors. A real step is slower; one that is said to be faster is measured wrongly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runtime.budget.cache import kv_bytes, state_bytes
from runtime.budget.layout import Layout, Stage, refusal, stages
from runtime.budget.precision import KV_BYTES
from runtime.budget.traffic import traffic
from runtime.budget.weights import Costs
from runtime.budget.workload import Cluster, Workload
from runtime.inventory.model import Inventory

NOT_READ = frozenset({"embed", "vision", "projector", "mtp"})


@dataclass(frozen=True, slots=True)
class Floors:
    """Seconds; None where a bandwidth was not given. `decode` is one token of every sequence."""

    memory: float | None
    compute: float | None
    communication: float | None
    decode: float | None
    load: float | None

    @property
    def work(self) -> float | None:
        """Reading or computing, whichever is longer."""
        return max((t for t in (self.memory, self.compute) if t is not None), default=None)


def floors(costs: Costs, layout: Layout, cluster: Cluster, workload: Workload) -> Floors:
    """Of the slowest stage, times the stages a token passes."""
    inventory = costs.inventory
    plan = stages(inventory.layers, layout.pp)
    batches = workload.micro_batches or layout.pp
    sequences = max(1, -(-workload.concurrency // (layout.dp * batches)))  # of a rank in one micro-batch
    passes = max(batches, layout.pp)
    memory = compute = communication = None
    if cluster.hbm:
        memory = passes * max(_read(costs, layout, s, sequences, workload) for s in plan) / cluster.hbm
    if cluster.flops and inventory.active_parameters is not None:
        compute = passes * 2 * inventory.active_parameters * sequences / (layout.pp * layout.tp) / cluster.flops
    if (cluster.intra or layout.world == 1) and (cluster.inter or cluster.nodes == 1):
        communication = passes * max(_communication(inventory, layout, s, cluster, sequences) for s in plan)
    work = max((t for t in (memory, compute) if t is not None), default=None)
    decode = None if work is None or communication is None else work + communication
    load = None
    if cluster.load_rate:
        per_node = sum(_held(costs, layout, rank) for rank in range(min(layout.world, cluster.devices_per_node)))
        load = per_node / cluster.load_rate
    return Floors(memory, compute, communication, decode, load)


def _held(costs: Costs, layout: Layout, rank: int) -> int:
    stage = stages(costs.inventory.layers, layout.pp)[layout.stage_of(rank)]
    return sum(costs.weights(layout, stage, rank % layout.tp).values())


def _read(costs: Costs, layout: Layout, stage: Stage, sequences: int, workload: Workload) -> float:
    """Bytes a rank reads in one pass: its weights, of the experts those that are hit, and the caches of its sequences."""
    inventory = costs.inventory
    kinds = costs.weights(layout, stage)
    weights = float(sum(size for kind, size in kinds.items() if kind not in NOT_READ and kind != "routed"))
    mixture = inventory.mixture
    if mixture is not None and mixture.top_k is not None:
        tokens = sequences * layout.dp
        weights += kinds.get("routed", 0) * (1 - (1 - mixture.top_k / mixture.experts) ** tokens)
    caches = kv_bytes(inventory, layout, stage, workload.context, KV_BYTES[workload.kv]) + state_bytes(inventory, layout, stage)
    return weights + sequences * caches


def _communication(inventory: Inventory, layout: Layout, stage: Stage, cluster: Cluster, sequences: int) -> float:
    """Seconds of dispatch, combine and all-reduces of one pass; a rank sends what its own tokens need."""
    moved = traffic(inventory, layout, cluster)
    if moved is None:
        return 0.0
    layers = sum(1 for layer in inventory.moe_layers if stage.holds(layer))
    share = sequences / layout.tp  # the ranks of a tensor-parallel group send a part each
    seconds = 0.0
    if cluster.intra:
        seconds += 2 * layers * share * (moved.remote - moved.inter) / cluster.intra
    if cluster.inter:
        seconds += 2 * layers * share * moved.inter / cluster.inter
    link = cluster.inter if moved.all_reduce_leaves_host else cluster.intra
    if link:
        seconds += (stage.stop - stage.first) * sequences * moved.all_reduce / link
    return seconds


def crossover(costs: Costs, cluster: Cluster, workload: Workload, tries: Iterable[int]) -> int | None:
    """The first number of devices, spread as one expert-parallel group, at which communication takes longer than work; None: none does.

    ValueError when the bandwidths that decide it were not given.
    """
    inventory = costs.inventory
    for devices in tries:
        layout = Layout(dp=devices)
        mixture = inventory.mixture
        if mixture is not None and devices > mixture.experts:
            layout = Layout(dp=devices, redundant=devices - mixture.experts)
        if refusal(inventory, layout):
            break
        nodes = -(-devices // cluster.devices_per_node)
        wide = Cluster(nodes, cluster.devices_per_node, intra=cluster.intra, inter=cluster.inter, hbm=cluster.hbm, flops=cluster.flops)
        found = floors(costs, layout, wide, workload)
        if found.work is None or found.communication is None:
            raise ValueError("bandwidths missing")
        if found.communication > found.work:
            return devices
    return None
