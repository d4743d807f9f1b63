"""What a layout needs and what there is, in bytes, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from probes.machine import memory
from runtime.budget.layout import Layout, checked
from runtime.budget.precision import computed, stored
from runtime.budget.rank import RankBudget, rank_budgets
from runtime.budget.weights import Costs
from runtime.budget.workload import Cluster, Workload
from runtime.inventory.opening import open_inventory
from runtime.serve_config import ServeConfig
from workbench.bringup.site import Site

USUAL = 8192  # tokens of the one sequence that must fit where no context was asked for, as in `workbench diagnose oom-on-load`
OVERHEAD = 2 << 30  # of a device, for driver, runtime and graphs, as in `workbench plan`; none on a CPU


@dataclass(frozen=True, slots=True)
class Room:
    """Of one host: `nbytes` for all its ranks together on CPUs, for each device otherwise. None: not known."""

    nbytes: int | None
    shared: bool
    source: str

    def of_rank(self, ranks: int) -> int | None:
        """Bytes for each of so many ranks on the host."""
        return self.nbytes // ranks if self.nbytes is not None and self.shared else self.nbytes


def room(site: Site) -> Room:
    """What was given, else what this host says about itself."""
    if site.options.device_memory is not None:
        return Room(site.options.device_memory, False, "--device-memory")
    if site.options.endpoint is not None:
        return Room(None, False, "not known")
    devices = gpus(site)
    if devices:
        sizes = [int(one["memory"]) for one in devices if one.get("memory")]
        return Room(min(sizes, default=None), False, "memory of the smallest device")
    found = memory()
    known = [size for size in (found["limit"], found["total"]) if size is not None]
    return Room(min(known, default=None), True, "this host's memory, shared by its ranks")


def gpus(site: Site) -> list[dict[str, Any]]:
    """Of this host, when ranks would use them."""
    if site.options.config.device == "cpu":
        return []
    return list(((site.facts().get("devices") or {}).get("gpus") or {}).values())


def fullest(site: Site, layout: Layout) -> RankBudget:
    """The rank that needs most. Ours keep everything in the compute dtype; an engine started elsewhere keeps it as stored.

    UsageError for an impossible layout.
    """
    options, inventory = site.options, open_inventory(site.model)
    wide = site.full_precision
    sizes = stored if options.endpoint is not None else computed(4 if wide else 2)
    context = options.context or min(USUAL, inventory.max_positions or USUAL)
    workload = Workload(context=context, batch_tokens=options.config.max_tokens_per_step, kv="fp32" if wide else "bf16")
    cluster = Cluster(1, layout.world, overhead=OVERHEAD if gpus(site) else 0)
    return max(rank_budgets(Costs(inventory, sizes), checked(inventory, layout), cluster, workload), key=lambda rank: rank.total)


def layout_of(config: ServeConfig) -> Layout:
    sizes = config.layout
    return Layout(sizes.tp, sizes.pp, sizes.dp, config.redundant_experts)


def on_hosts(site: Site, hosts: int) -> ServeConfig | None:
    """The settings for the first `hosts` of all hosts: the whole layout where they have devices enough, so that only the network is new
    later; else fewer replicas, or else fewer stages. None when it cannot be cut."""
    config = site.options.config
    sizes, devices = config.layout, gpus(site)
    fewer = {"nodes": hosts, "node_rank": 0, "port": 0, "head": config.head if hosts > 1 else None}
    if (not devices or len(devices) * hosts >= sizes.world) and sizes.world % hosts == 0:
        return msgspec.structs.replace(config, **fewer)
    if config.nodes % hosts:
        return None
    cut = config.nodes // hosts
    if sizes.dp % cut == 0:
        return msgspec.structs.replace(config, dp=sizes.dp // cut, ep=None, **fewer)
    if sizes.pp % cut == 0 and config.stage_layers is None:
        return msgspec.structs.replace(config, dp=sizes.dp, ep=None, pp=sizes.pp // cut, **fewer)
    return None
