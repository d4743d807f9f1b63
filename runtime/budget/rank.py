"""The budget of every rank on one layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.budget.cache import kv_bytes, longest_context, state_bytes
from runtime.budget.estimates import activations, buffers
from runtime.budget.layout import Layout, Stage, stages
from runtime.budget.precision import KV_BYTES
from runtime.budget.weights import Costs
from runtime.budget.workload import Cluster, Workload
from runtime.inventory.tensors import Kind


@dataclass(frozen=True, slots=True)
class RankBudget:
    """Bytes. Weights, KV and state are facts; activations, buffers and overhead are estimates."""

    rank: int
    stage: int
    kinds: Mapping[Kind, int]
    kv: int
    state: int
    activations: int
    buffers: int
    overhead: int
    limit: int | None

    @property
    def weights(self) -> int:
        return sum(self.kinds.values())

    @property
    def facts(self) -> int:
        return self.weights + self.kv + self.state

    @property
    def total(self) -> int:
        return self.facts + self.activations + self.buffers + self.overhead

    @property
    def left(self) -> int | None:
        return None if self.limit is None else self.limit - self.total

    @property
    def fits(self) -> bool | None:
        return None if self.left is None else self.left >= 0


def rank_budgets(costs: Costs, layout: Layout, cluster: Cluster, workload: Workload) -> tuple[RankBudget, ...]:
    """Of every rank, in order. Ranks of one stage and lane are alike."""
    plan = stages(costs.inventory.layers, layout.pp)
    made: dict[tuple[int, bool], RankBudget] = {}
    budgets = []
    for rank in range(layout.world):
        stage, lane = layout.stage_of(rank), rank % layout.tp
        key = (stage, lane == 0)
        if key not in made:
            made[key] = _budget(costs, layout, plan[stage], lane, cluster, workload)
        like = made[key]
        budgets.append(
            RankBudget(
                rank, stage, like.kinds, like.kv, like.state, like.activations, like.buffers, like.overhead, cluster.device_memory
            )
        )
    return tuple(budgets)


def _budget(costs: Costs, layout: Layout, stage: Stage, lane: int, cluster: Cluster, workload: Workload) -> RankBudget:
    sequences = -(-workload.concurrency // layout.dp)
    return RankBudget(
        rank=0,
        stage=stage.index,
        kinds=costs.weights(layout, stage, lane),
        kv=sequences * kv_bytes(costs.inventory, layout, stage, workload.context, KV_BYTES[workload.kv]),
        state=sequences * state_bytes(costs.inventory, layout, stage),
        activations=activations(costs, layout, stage, workload),
        buffers=buffers(costs.inventory, layout, workload),
        overhead=cluster.overhead,
        limit=cluster.device_memory,
    )


def fitting_context(costs: Costs, layout: Layout, cluster: Cluster, workload: Workload) -> int | None:
    """The longest context of which `concurrency` sequences fit on every rank; None when memory does not limit it, or no limit is given."""
    if cluster.device_memory is None:
        return None
    plan = stages(costs.inventory.layers, layout.pp)
    sequences = -(-workload.concurrency // layout.dp)
    longest: int | None = None
    for stage in plan:
        budget = _budget(costs, layout, stage, 0, cluster, workload)
        assert budget.left is not None
        room = budget.left + budget.kv
        found = 0 if room < 0 else longest_context(room, sequences, costs.inventory, layout, stage, KV_BYTES[workload.kv])
        if found is not None:
            longest = found if longest is None else min(longest, found)
    return longest
