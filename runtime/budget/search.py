"""The layouts of a cluster, ranked, and why each of the others lost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from runtime.budget.floors import Floors, floors
from runtime.budget.layout import Layout, every_layout, refusal
from runtime.budget.rank import RankBudget, fitting_context, rank_budgets
from runtime.budget.traffic import Traffic, bubble, traffic
from runtime.budget.units import human
from runtime.budget.weights import Costs
from runtime.budget.workload import Cluster, Workload
from runtime.inventory.model import Inventory

READ_ALL = 0.03
"""Seconds in which a device reads its whole memory, for ranking when --hbm is not given. From data sheets, memory over bandwidth:
H100 24 ms, B200 24 ms, H200 29 ms, MI300X 36 ms, A100 40 ms."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout with what it costs; `refused` says why it cannot be at all. `reason` is why it lost, empty for the winner.

    `floors` are from the bandwidths given, `ranked` also from the assumed one of the memory.
    """

    layout: Layout
    worst: RankBudget | None = None
    floors: Floors | None = None
    ranked: Floors | None = None
    traffic: Traffic | None = None
    bubble: float = 0.0
    context: int | None = None  # the longest that fits
    refused: str = ""
    reason: str = ""

    @property
    def fits(self) -> bool:
        return self.worst is not None and self.worst.fits is not False


def search(costs: Costs, cluster: Cluster, workload: Workload, redundant: int = 0) -> list[Candidate]:
    """Every product of the cluster's devices, best first. Experts that do not divide get as many replicas as make them."""
    found = [_candidate(costs, _filled(costs.inventory, layout, redundant), cluster, workload) for layout in every_layout(cluster.devices)]
    found.sort(key=_order)
    best = found[0]
    return [best, *(replace(other, reason=_reason(best, other)) for other in found[1:])]


def with_memory(cluster: Cluster) -> Cluster:
    """The cluster with an assumed memory bandwidth where none was given."""
    if cluster.hbm is not None or cluster.device_memory is None:
        return cluster
    return replace(cluster, hbm=cluster.device_memory / READ_ALL)


def candidate(costs: Costs, layout: Layout, cluster: Cluster, workload: Workload) -> Candidate:
    """One layout that is known to be possible."""
    return _candidate(costs, layout, cluster, workload)


def _filled(inventory: Inventory, layout: Layout, redundant: int) -> Layout:
    mixture = inventory.mixture
    if mixture is None:
        return layout
    return replace(layout, redundant=redundant + (-(mixture.experts + redundant)) % layout.ep)


def _candidate(costs: Costs, layout: Layout, cluster: Cluster, workload: Workload) -> Candidate:
    why = refusal(costs.inventory, layout)
    if why is not None:
        return Candidate(layout, refused=why)
    worst = max(rank_budgets(costs, layout, cluster, workload), key=lambda budget: budget.total)
    return Candidate(
        layout,
        worst,
        floors(costs, layout, cluster, workload),
        floors(costs, layout, with_memory(cluster), workload),
        traffic(costs.inventory, layout, cluster),
        bubble(layout.pp, workload.micro_batches or layout.pp),
        fitting_context(costs, layout, cluster, workload),
    )


def _order(one: Candidate) -> tuple[float, ...]:
    """Possible, fitting, tensor parallelism inside a host; then the time floor of a decode step, then bytes that leave hosts, then room."""
    if one.worst is None:
        return (2.0, 0.0, 0.0, 0.0, 0.0)
    leaves = 1.0 if one.traffic is not None and one.traffic.all_reduce_leaves_host else 0.0
    if not one.fits:
        return (1.0, float(one.worst.total), 0.0, 0.0, 0.0)
    return (0.0, leaves, _time(one), one.bubble, float(one.worst.total))


def _time(one: Candidate) -> float:
    if one.ranked is None:
        return math.inf
    if one.ranked.decode is not None:
        return one.ranked.decode
    if one.ranked.work is not None:
        return one.ranked.work
    if one.ranked.communication is not None:
        return one.ranked.communication
    return float(one.traffic.inter) if one.traffic is not None else 0.0


def _reason(best: Candidate, other: Candidate) -> str:
    if other.refused:
        return other.refused
    assert other.worst is not None
    if not other.fits:
        return f"does not fit: {shortfall(other.worst)}"
    if other.traffic is not None and other.traffic.all_reduce_leaves_host and best.traffic and not best.traffic.all_reduce_leaves_host:
        return "its tensor-parallel groups leave the host: two all-reduces a layer on the slower link"
    mine, theirs = _time(other), _time(best)
    if mine > theirs and other.ranked is not None and (other.ranked.work is not None or other.ranked.communication is not None):
        return f"at least {mine * 1e3:.2f} ms a decode step, {_cause(best, other)}, against {theirs * 1e3:.2f} ms"
    if mine > theirs:
        return f"{mine / 1024:.1f} KiB a token and layer leave the host, against {theirs / 1024:.1f} KiB"
    if other.bubble > best.bubble:
        return f"pipeline bubble {other.bubble:.0%} against {best.bubble:.0%}"
    assert best.worst is not None
    return f"as fast on paper, with {human(other.worst.total - best.worst.total)} more on its fullest rank"


def _cause(best: Candidate, other: Candidate) -> str:
    """Which part of the floor grew most."""
    assert best.ranked is not None and other.ranked is not None and best.worst is not None and other.worst is not None
    grown = {
        "reads": _grown(other.ranked.memory, best.ranked.memory),
        "arithmetic": _grown(other.ranked.compute, best.ranked.compute),
        "sending": _grown(other.ranked.communication, best.ranked.communication),
    }
    most = max(grown, key=lambda name: grown[name])
    if most != "reads":
        return f"mostly {most}"
    if other.worst.kv - best.worst.kv > other.worst.weights - best.worst.weights:
        return "mostly reads of the KV cache"
    return "mostly reads of weights"


def _grown(mine: float | None, theirs: float | None) -> float:
    return -math.inf if mine is None or theirs is None else mine - theirs


def shortfall(budget: RankBudget) -> str:
    """What is lacking, and the largest line."""
    lines = {
        "weights": budget.weights,
        "KV cache": budget.kv,
        "recurrent state": budget.state,
        "activations": budget.activations,
        "buffers": budget.buffers,
    }
    largest = max(lines, key=lambda name: lines[name])
    return f"rank {budget.rank} needs {human(budget.total)} of {human(budget.limit)}, of which {largest} {human(lines[largest])}"
