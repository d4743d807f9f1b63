"""Rung 4: on paper, the layout fits."""

from __future__ import annotations

from workbench.bringup.document import Evidence
from workbench.bringup.paper import fullest, layout_of, room
from workbench.bringup.rung import Outcome, Rung, failed, passed, skipped
from workbench.bringup.site import Site, diagnose


def climb(site: Site) -> Outcome:
    config = site.options.config
    if site.options.endpoint is not None and not site.options.layout_given:
        return skipped("the engine's layout is not known: give --tp, --pp, --dp")
    layout, there = layout_of(config), room(site)
    limit = there.of_rank(layout.world // config.nodes)
    rank = fullest(site, layout)
    evidence = [
        Evidence("layout", f"{layout} on {config.nodes} hosts"),
        Evidence("fullest rank", f"{rank.total} bytes (weights {rank.weights}, KV {rank.kv})", "" if limit is None else f"at most {limit}"),
    ]
    if limit is None:
        return skipped("the memory of a device is not known: give --device-memory", *evidence)
    if rank.total > limit:
        told = f"rank {rank.rank} needs {rank.total} bytes and has {limit} ({there.source})"
        more = diagnose("oom-on-load", f"--model {site.model} --limit {limit} --ranks {layout.world}")
        return failed(told, *evidence, next=(f"workbench plan {site.model} --nodes N --devices-per-node N --device-memory SIZE", *more))
    return passed(f"{rank.total} bytes on the fullest of {layout.world} ranks fit {limit} ({there.source})", *evidence)


RUNG = Rung("plan", "the layout, on paper", ("config", "weights", "settings", "environment"), climb)
