"""What to do about a plan, in sentences: the smallest changes that make it fit, and what would be known with more said."""

from __future__ import annotations

from dataclasses import replace

from runtime.budget.precision import PRECISIONS, sizes_for
from runtime.budget.rank import rank_budgets
from runtime.budget.search import READ_ALL, Candidate, search, shortfall
from runtime.budget.units import human
from runtime.budget.weights import Costs
from runtime.budget.workload import Cluster, Workload

HEAD_ROOM = 0.85  # of the limit, above which an estimate's error decides (reference/causes_oom_garbled_image.md, oom.plan-does-not-fit)
MOST_NODES = 256


def advice(costs: Costs, best: Candidate, cluster: Cluster, workload: Workload, missing: list[str]) -> list[str]:
    """Sentences, the most useful first."""
    assert best.worst is not None
    said: list[str] = []
    if cluster.device_memory is None:
        said.append("give --device-memory to learn whether it fits and how long a context can be")
    elif not best.fits:
        said += _make_it_fit(costs, best, cluster, workload)
    elif best.worst.total > HEAD_ROOM * cluster.device_memory:
        share = best.worst.total / cluster.device_memory
        said.append(f"it fits with no head room: rank {best.worst.rank} is at {share:.0%}, and activations and buffers are estimates")
    said += _context(costs, best, workload)
    if best.layout.redundant:
        said.append(f"{best.layout.redundant} redundant experts a layer fill the slots of ep {best.layout.ep} evenly")
    if cluster.hbm is None and cluster.device_memory is not None and cluster.devices > 1:
        said.append(f"layouts are ranked as if a device read its whole memory in {READ_ALL * 1e3:.0f} ms: give --hbm")
    if missing:
        said.append(f"time floors are incomplete: give {', '.join(missing)}")
    return said


def _make_it_fit(costs: Costs, best: Candidate, cluster: Cluster, workload: Workload) -> list[str]:
    assert best.worst is not None
    said = [f"does not fit: {shortfall(best.worst)}"]
    if best.context is not None and best.context > 0:
        sequences = workload.concurrency
        said.append(f"the longest context that fits for {sequences} sequences is {best.context} tokens: --context {best.context}")
    if best.context == 0 and workload.concurrency > best.layout.dp:
        fewer = _fewer(costs, best, cluster, workload)
        if fewer:
            said.append(f"{fewer} sequences of {workload.context} tokens fit: --concurrency {fewer}")
    smaller = _smaller(costs, best, cluster, workload)
    if smaller:
        said.append(smaller)
    more = _more_nodes(costs, cluster, workload)
    if more is not None:
        said.append(f"the smallest cluster of such nodes that fits has {more} (--nodes {more})")
    elif best.worst.weights > (cluster.device_memory or 0):
        said.append(f"no cluster of up to {MOST_NODES} such nodes fits: the devices are too small")
    return said


def _fewer(costs: Costs, best: Candidate, cluster: Cluster, workload: Workload) -> int:
    """The most sequences that fit, by halving."""
    count = workload.concurrency // 2
    while count >= best.layout.dp:
        if all(rank.fits for rank in rank_budgets(costs, best.layout, cluster, replace(workload, concurrency=count))):
            return count
        count //= 2
    return 0


def _smaller(costs: Costs, best: Candidate, cluster: Cluster, workload: Workload) -> str | None:
    """The mildest precision of the experts that fits; only those that make them smaller are tried."""
    stored = sum(rank for kind, rank in (best.worst.kinds if best.worst else {}).items() if kind == "routed")
    for name in sorted(PRECISIONS, key=lambda word: -PRECISIONS[word].bits):
        other = Costs(costs.inventory, sizes_for(name))
        ranks = rank_budgets(other, best.layout, cluster, replace(workload, weights=name))
        if ranks[0].kinds.get("routed", 0) < stored and all(rank.fits for rank in ranks):
            return f"with the experts in {name} it fits: {human(max(rank.total for rank in ranks))} on the fullest rank"
    return None


def _more_nodes(costs: Costs, cluster: Cluster, workload: Workload) -> int | None:
    nodes = cluster.nodes + 1
    while nodes <= MOST_NODES:
        if search(costs, replace(cluster, nodes=nodes), workload)[0].fits:
            return nodes
        nodes = nodes + 1 if nodes < 16 else nodes * 2
    return None


def _context(costs: Costs, best: Candidate, workload: Workload) -> list[str]:
    longest = costs.inventory.max_positions
    if longest is not None and workload.context > longest:
        return [f"the model's own limit is {longest} tokens, fewer than the {workload.context} asked for"]
    return []
