"""A fabric test into a run of its own: the tables `link`, `resource`, `event` and `library_fact`, and the whole answer as a document."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from probes.fabric.answer import LARGE, Fabric
from traces import schema
from traces.run import Run, create_run
from traces.store import write_document, write_rows

REACH, PLACE, CARRIED, BUSY, SEGMENTS = "fabric.reach", "fabric.place", "fabric.carried", "fabric.busy", "fabric.segments"
"""Kinds of event. The attributes are those of Reach, Carried, Timing (of large messages) and Node."""


def record(found: Fabric, root: Path | None = None) -> Run:
    """A closed run."""
    run = create_run(engine="fabric", model="fabric", root=root, world_size=found.world)
    now = time.time_ns()
    # Two nodes of one host name (containers, namespaces) are still two places.
    shared = {node.host for node in found.nodes if _several(found, node.host)}
    places = {node.rank: f"{node.host}/{node.address}" if node.host in shared else node.host for node in found.nodes}
    resources = [(f"rank{n.rank}", now, places[n.rank], n.rank, None, None, None, None, 0, "rank", n.device, "{}") for n in found.nodes]
    write_rows(run, schema.RESOURCE, resources, producer="fabric")
    # Of one size only, the largest: a mean over sizes would mix latency in.
    largest = max((t.size for t in found.timings), default=0)
    links = [(now, t.src, t.dst, t.size, t.concurrent, t.seconds, t.size / t.seconds if t.size == largest else None) for t in found.timings]
    write_rows(run, schema.LINK, links, producer="fabric-links")
    write_rows(run, schema.EVENT, _events(found, now), producer="fabric-events")
    write_rows(run, schema.LIBRARY_FACT, [(place, "backend", found.backend) for place in places.values()], producer="fabric-facts")
    write_document(run, found.schema, found)
    run.update(state="closed")
    return run


def _events(found: Fabric, now: int) -> list[tuple[Any, ...]]:
    said: list[tuple[str, int, Any]] = [(REACH, one.src, one) for one in found.reached]
    said += [(PLACE, one.rank, one) for one in found.places]
    said += [(CARRIED, one.src, one) for one in found.carried]
    said += [(BUSY, one.src, one) for one in found.timings if one.size >= LARGE]
    said += [(SEGMENTS, one.rank, one) for one in found.nodes]
    return [(now, 0, "fabric", rank, kind, msgspec.json.encode(one).decode()) for kind, rank, one in said]


def _several(found: Fabric, host: str) -> bool:
    """Whether ranks of several nodes report that host name."""
    return len({node.address for node in found.nodes if node.host == host}) > 1
