"""From the options of `workbench plan` to what the planner is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runtime.budget.layout import Layout
from runtime.budget.units import parse_count, parse_rate, parse_size
from runtime.budget.workload import Cluster, Workload
from traces.errors import UsageError

if TYPE_CHECKING:
    from runtime.budget.document import PlanDocument


def layout_of(options: Mapping[str, Any]) -> Layout | None:
    """The layout that was named, or None to search. UsageError when --ep is not dp x tp."""
    named = {key: options[key] for key in ("tp", "pp", "dp", "ep") if options[key] is not None}
    if not named:
        return None
    tp, pp, ep = options["tp"] or 1, options["pp"] or 1, options["ep"]
    if ep is not None and ep % tp:
        raise UsageError(f"--ep {ep} is no multiple of --tp {tp}", "experts are spread over dp x tp ranks")
    dp = options["dp"] or (ep // tp if ep is not None else 1)
    if ep is not None and dp * tp != ep:
        raise UsageError(f"--ep {ep} is not --dp {dp} x --tp {tp}", "experts are spread over dp x tp ranks: drop --ep")
    return Layout(tp, pp, dp, options["redundant_experts"])


def cluster_of(options: Mapping[str, Any], layout: Layout | None) -> Cluster:
    """The devices. A layout without --devices-per-node has a node of its own size. UsageError when it needs more than there are."""
    nodes, per_node = options["nodes"], options["devices"] or options["devices_per_node"]
    if options["devices"] and (nodes > 1 or options["devices_per_node"]):
        raise UsageError("--devices is the number in one node", "give --nodes and --devices-per-node instead")
    if per_node is None:
        per_node = -(-layout.world // nodes) if layout is not None else 1
    if layout is not None and layout.world > nodes * per_node:
        raise UsageError(f"the layout {layout} needs {layout.world} devices, the cluster has {nodes * per_node}", "raise --nodes")
    memory = options["device_memory"]
    rates = {name: None if options[name] is None else parse_rate(options[name]) for name in ("intra", "inter", "hbm", "load_rate")}
    return Cluster(
        nodes,
        per_node,
        None if memory is None else parse_size(memory),
        parse_size(options["overhead"]),
        flops=options["flops"],
        **rates,
    )


def workload_of(options: Mapping[str, Any]) -> Workload:
    return Workload(
        context=parse_count(options["context"]),
        concurrency=options["concurrency"],
        batch_tokens=parse_count(options["batch_tokens"]),
        micro_batches=options["micro_batches"],
        weights=options["weights"],
        kv=options["kv"],
    )


def plan_of_run(name: str, options: Mapping[str, Any]) -> PlanDocument:
    """The plan of a recorded run's model and layout, and how far the run was from it. UnknownRun, UsageError."""
    import msgspec

    from runtime.budget.comparison import compare
    from runtime.budget.planning import Question, plan
    from traces.run import find_run

    run = find_run(name)
    inventory, served, comparison = compare(run)
    cluster = cluster_of({**options, "devices": None, "devices_per_node": None, "nodes": 1}, served.layout)
    document = plan(Question(run.info.model_path, inventory, cluster, workload_of(options), served.layout))
    return msgspec.structs.replace(document, verification=comparison)
