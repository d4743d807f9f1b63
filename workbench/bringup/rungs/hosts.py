"""Rungs 7 and 8: the same ranks spread over two hosts, so that only the network is new; then all hosts."""

from __future__ import annotations

from workbench.bringup.paper import on_hosts
from workbench.bringup.rung import Outcome, Rung, skipped
from workbench.bringup.rungs.one_host import started_and_compared
from workbench.bringup.site import Site
from workbench.cli.output import note


def two(site: Site) -> Outcome:
    if site.options.config.nodes < 2:
        return skipped("no other host was given: --nodes 2 --head HOST")
    return _over(site, 2)


def all_of_them(site: Site) -> Outcome:
    nodes = site.options.config.nodes
    return skipped(f"{nodes} hosts were given: nothing beyond them") if nodes < 3 else _over(site, nodes)


def _over(site: Site, nodes: int) -> Outcome:
    """The other hosts are started by hand: they hold nothing of this ladder."""
    config = on_hosts(site, nodes)
    if config is None:
        return skipped(f"the layout can be cut to {nodes} hosts neither by replicas nor by stages")
    sizes = f"--tp {config.tp} --pp {config.pp} --dp {config.layout.dp}"
    note(f"start on each other host R = 1 to {nodes - 1}:")
    note(f"  workbench serve {site.model} {sizes} --nodes {nodes} --node-rank R --head {config.head}")
    return started_and_compared(site, config)


ASPECTS = ("environment", "config", "weights", "settings")
TWO = Rung("two hosts", "the network between two hosts", ASPECTS, two, serves=True, inside=True)
ALL = Rung("all hosts", "the number of hosts", ASPECTS, all_of_them, serves=True, inside=True)
