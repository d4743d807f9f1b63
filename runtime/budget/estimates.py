"""What can only be estimated: activations of a step and communication buffers. Their real size is the engine's business."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.budget.layout import Layout, Stage
from runtime.budget.weights import Costs
from runtime.budget.workload import Workload
from runtime.inventory.model import Inventory

ITEM = 2  # activations in 16 bits
LOGIT = 4  # logits in 32 bits


@dataclass(frozen=True, slots=True)
class Widths:
    """Values a token needs at the widest point of a layer, on one rank."""

    attention: int
    feed_forward: int
    stream: int


def widths(costs: Costs, layout: Layout, stage: Stage) -> Widths:
    """Of the stage's widest layers: projections beside their input and output; a balanced share of expert rows (top-k rows a token)."""
    inventory = costs.inventory
    mine = [rows for layer, rows in costs.rows.items() if stage.holds(layer)]
    mixture = inventory.mixture
    routed = 0 if mixture is None else (mixture.top_k or 1) * (2 * mixture.width + 3 * mixture.inner)
    hidden = inventory.hidden
    return Widths(
        attention=2 * hidden + max((rows.whole + rows.split // layout.tp for rows in mine), default=0),
        feed_forward=2 * hidden + routed + max((rows.feed_forward // layout.tp for rows in mine), default=0),
        stream=(1 + inventory.residual_blocks) * hidden,
    )


def activations(costs: Costs, layout: Layout, stage: Stage, workload: Workload) -> int:
    """Bytes at the widest point of a step of `batch_tokens`, and the logits of the sequences that end in it."""
    wide = widths(costs, layout, stage)
    peak = workload.batch_tokens * (wide.stream + max(wide.attention, wide.feed_forward)) * ITEM
    logits = 0
    if stage.last:
        sampled = min(workload.batch_tokens, -(-workload.concurrency // layout.dp))
        logits = sampled * -(-costs.inventory.vocab // layout.tp) * LOGIT
    return peak + logits


def buffers(inventory: Inventory, layout: Layout, workload: Workload) -> int:
    """Bytes of send and receive buffers of one dispatch and one combine, balanced; none when a rank holds all experts."""
    mixture = inventory.mixture
    if mixture is None or layout.ep == 1:
        return 0
    rows = workload.batch_tokens * (mixture.top_k or 1)
    return 2 * 2 * rows * mixture.width * ITEM
