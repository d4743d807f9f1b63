"""From a question to workbench.plan.v1."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from runtime.budget.advice import advice
from runtime.budget.cache import kv_bytes_per_token, state_bytes
from runtime.budget.document import (
    BASIS,
    CandidatePart,
    ContextPart,
    FloorsPart,
    LayoutPart,
    ModelPart,
    PlanDocument,
    PrecisionPart,
    RankPart,
    TrafficPart,
)
from runtime.budget.floors import Floors, crossover
from runtime.budget.layout import Layout, checked, stages
from runtime.budget.precision import KV_BYTES, PRECISIONS, sizes_for
from runtime.budget.rank import RankBudget, fitting_context, rank_budgets
from runtime.budget.search import Candidate, candidate, search
from runtime.budget.traffic import Traffic
from runtime.budget.weights import Costs
from runtime.budget.workload import Cluster, Workload
from runtime.inventory.model import Inventory

LARGEST = 8192  # devices up to which the crossover of communication and work is looked for


@dataclass(frozen=True, slots=True)
class Question:
    """`layout` None: search the cluster. `path` is how the model was named."""

    path: str
    inventory: Inventory
    cluster: Cluster
    workload: Workload
    layout: Layout | None = None
    redundant: int = 0


def plan(question: Question) -> PlanDocument:
    """The answer. UsageError when the layout is impossible, or when none of the cluster's layouts is possible."""
    inventory, cluster, workload = question.inventory, question.cluster, question.workload
    costs = Costs(inventory, sizes_for(workload.weights))
    if question.layout is None:
        candidates = search(costs, cluster, workload, question.redundant)
    else:
        candidates = [candidate(costs, checked(inventory, question.layout), cluster, workload)]
    best = candidates[0]
    checked(inventory, best.layout)  # the search puts impossible layouts last: the first is one only if all are
    ranks = rank_budgets(costs, best.layout, cluster, workload)
    fits = None if cluster.device_memory is None else all(rank.fits for rank in ranks)
    floors = _floors(costs, best.floors, cluster, workload)
    return PlanDocument(
        model=_model(question.path, inventory),
        assumptions=list(inventory.assumptions),
        layout=_layout(inventory, best.layout),
        workload=asdict(workload),
        cluster=asdict(cluster),
        per_rank=[_rank(rank) for rank in ranks],
        basis=BASIS,
        fits=fits,
        kv_bytes_per_token=kv_bytes_per_token(inventory, KV_BYTES[workload.kv]),
        state_bytes_per_sequence=state_bytes(inventory, Layout(), stages(inventory.layers, 1)[0]),
        context=_context(costs, best, cluster, workload),
        traffic=None if best.traffic is None else _traffic(best.traffic),
        pipeline_bubble=best.bubble,
        floors=floors,
        precision=_precisions(inventory, best.layout, cluster, workload),
        candidates=[_candidate(one) for one in candidates],
        advice=advice(costs, best, cluster, workload, floors.missing),
    )


def _model(path: str, inventory: Inventory) -> ModelPart:
    return ModelPart(
        path,
        inventory.architecture,
        inventory.family,
        inventory.source,
        inventory.parameters,
        inventory.active_parameters,
        inventory.draft_parameters,
        inventory.stored_bytes,
        inventory.tensors,
        inventory.layers,
        inventory.max_positions,
        {str(kind): size for kind, size in inventory.kinds().items()},
    )


def _layout(inventory: Inventory, layout: Layout) -> LayoutPart:
    slots = None if inventory.mixture is None else layout.slots(inventory.mixture.experts)
    sizes = [stage.stop - stage.first for stage in stages(inventory.layers, layout.pp)]
    return LayoutPart(layout.tp, layout.pp, layout.dp, layout.ep, layout.redundant, slots, sizes)


def _rank(rank: RankBudget) -> RankPart:
    return RankPart(
        rank.rank, rank.stage, rank.weights, rank.kv, rank.state, rank.activations, rank.buffers, rank.overhead, rank.total,
        rank.limit, rank.fits, rank.left, {str(kind): size for kind, size in rank.kinds.items()},
    )  # fmt: skip


def _context(costs: Costs, best: Candidate, cluster: Cluster, workload: Workload) -> ContextPart:
    longest = costs.inventory.max_positions
    alone = fitting_context(costs, best.layout, cluster, replace(workload, concurrency=best.layout.dp))
    return ContextPart(workload.context, _least(best.context, longest), _least(alone, longest), longest)


def _least(fits: int | None, longest: int | None) -> int | None:
    """None stays None: what memory allows is not known without a limit."""
    return fits if fits is None or longest is None else min(fits, longest)


def _traffic(found: Traffic) -> TrafficPart:
    return TrafficPart(
        found.dispatch, found.remote, found.inter, found.inter_once, found.inter_share, found.hosts, found.all_reduce, found.boundary
    )


def _floors(costs: Costs, found: Floors | None, cluster: Cluster, workload: Workload) -> FloorsPart:
    assert found is not None, "only a refused layout has no floors"
    options = {"--hbm": cluster.hbm, "--flops": cluster.flops, "--intra": cluster.intra, "--load-rate": cluster.load_rate}
    if cluster.nodes > 1:
        options["--inter"] = cluster.inter
    missing = [name for name, value in options.items() if value is None]
    per_node = cluster.devices_per_node
    tries = list(range(1, per_node)) + [per_node * 2**k for k in range(LARGEST.bit_length()) if per_node * 2**k <= LARGEST]
    try:
        exceeds = crossover(costs, cluster, workload, tries)
    except ValueError:
        exceeds = None
    return FloorsPart(found.memory, found.compute, found.communication, found.decode, found.load, exceeds, missing)


def _precisions(inventory: Inventory, layout: Layout, cluster: Cluster, workload: Workload) -> list[PrecisionPart]:
    """The asked layout with the experts as stored and in every precision, and with KV in bf16 and fp8."""
    rows = []
    for weights in ("stored", *(name for name in PRECISIONS if name != "fp32")):
        costs = Costs(inventory, sizes_for(weights))
        for kv in ("bf16", "fp8"):
            asked = replace(workload, weights=weights, kv=kv)
            worst = max(rank_budgets(costs, layout, cluster, asked), key=lambda budget: budget.total)
            context = _least(fitting_context(costs, layout, cluster, asked), inventory.max_positions)
            source = "as stored" if weights == "stored" else PRECISIONS[weights].source
            rows.append(PrecisionPart(weights, kv, worst.weights, worst.total, worst.fits, context, source))
    return rows


def _candidate(one: Candidate) -> CandidatePart:
    layout = one.layout
    return CandidatePart(
        layout.tp, layout.pp, layout.dp, layout.ep, layout.redundant, one.fits, None if one.worst is None else one.worst.total,
        None if one.floors is None else one.floors.decode, None if one.traffic is None else one.traffic.inter_share, one.bubble,
        one.context, one.reason or one.refused,
    )  # fmt: skip
