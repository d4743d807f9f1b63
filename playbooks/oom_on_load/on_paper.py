"""A checkpoint and a limit, before anything is loaded: the plan as a run that the playbook can judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probes.recorder import Recorder
from runtime.budget.cache import kv_bytes, state_bytes
from runtime.budget.layout import Layout, checked, stages
from runtime.budget.weights import Costs
from runtime.inventory.opening import open_inventory
from traces.run import Run, whole_run

CONTEXT = 8192  # tokens of the one request that must fit; the model's own limit when that is shorter


def run_on_paper(model: str, limit: int, ranks: int, root: Path | None = None, kept_item: int | None = None) -> Run:
    """A closed run with the plan of every rank, experts spread over `ranks`, weights as stored (or kept in `kept_item` bytes a value).

    CheckpointError for an unknown model, UsageError for an impossible number of ranks.
    """
    inventory = open_inventory(model)
    layout = checked(inventory, Layout(dp=ranks))
    stage = stages(inventory.layers, 1)[0]
    stored = Costs(inventory).weights(layout, stage)
    kept = stored
    if kept_item is not None:
        from runtime.budget.precision import computed

        kept = Costs(inventory, computed(kept_item)).weights(layout, stage)
    context = min(CONTEXT, inventory.max_positions or CONTEXT)
    facts: dict[str, Any] = {
        "checkpoint_bytes": inventory.stored_bytes,
        "planned_read": sum(stored.values()),
        "planned_kept": sum(kept.values()),
        "planned_kv": kv_bytes(inventory, layout, stage, context, 2.0) + state_bytes(inventory, layout, stage),
        "limit_given": limit,
        "base_anon": 0,
    }
    sizes = {"tp": 1, "pp": 1, "dp": ranks, "ep": ranks}
    with whole_run(engine="plan", model=Path(model).name, root=root, latest=False, world_size=ranks, layout=sizes) as run:
        recorder = Recorder.open(run, "plan", ship=False)
        try:
            for rank in range(ranks):
                recorder.event("load_plan", rank=rank, **facts)
        finally:
            recorder.close()
    return run
