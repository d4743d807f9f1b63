"""What crosses between ranks for one token, and which part of it leaves the host."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.budget.estimates import ITEM
from runtime.budget.layout import Layout
from runtime.budget.workload import Cluster
from runtime.inventory.model import Inventory


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes for one token in one MoE layer and one direction, if experts are hit evenly; the combine sends as much back.

    `remote` leaves the rank, `inter` leaves the host with one row an expert (as our runtime sends), `inter_once` with one row a host
    (as two-level dispatches send). `all_reduce` is the traffic of tensor parallelism in one layer.
    """

    dispatch: int
    remote: int
    inter: int
    inter_once: int
    hosts: int  # that an expert-parallel group spans
    all_reduce: int
    all_reduce_leaves_host: bool
    boundary: int  # between two pipeline stages, at the widest

    @property
    def inter_share(self) -> float:
        return self.inter / self.dispatch if self.dispatch else 0.0


def traffic(inventory: Inventory, layout: Layout, cluster: Cluster) -> Traffic | None:
    """None for a model without experts, or whose top-k is not known."""
    mixture = inventory.mixture
    if mixture is None or mixture.top_k is None:
        return None
    row = mixture.width * ITEM
    dispatch = mixture.top_k * row
    near = min(layout.ep, cluster.devices_per_node)
    hosts = -(-layout.ep // cluster.devices_per_node)
    touched = hosts * (1 - (1 - 1 / hosts) ** mixture.top_k)  # distinct hosts of top_k independent draws
    far = 0.0 if hosts == 1 else touched * (hosts - 1) / hosts
    return Traffic(
        dispatch=dispatch,
        remote=dispatch * (layout.ep - 1) // layout.ep,
        inter=dispatch * (layout.ep - near) // layout.ep,
        inter_once=int(far * row),
        hosts=hosts,
        all_reduce=int(2 * 2 * (layout.tp - 1) / layout.tp * inventory.hidden * ITEM),
        all_reduce_leaves_host=layout.tp > cluster.devices_per_node,
        boundary=(1 + inventory.residual_blocks) * inventory.hidden * ITEM if layout.pp > 1 else 0,
    )


def bubble(pp: int, micro_batches: int) -> float:
    """Share of a pipeline's time that its stages wait while it fills and drains: (p - 1) / (m + p - 1) (Huang et al. 2019, GPipe)."""
    return (pp - 1) / (micro_batches + pp - 1)
