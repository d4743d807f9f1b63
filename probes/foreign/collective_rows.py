"""Debug lines of collective libraries as rows of the tables `channel` and `library_fact`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probes.foreign.collective_log import Channel, Fact, read
from traces.schema import CHANNEL, LIBRARY_FACT
from traces.table import Table


def rows(paths: Sequence[Path]) -> tuple[dict[Table, list[tuple[Any, ...]]], dict[Path, int], dict[Path, str]]:
    """Rows of both tables, and how many each file gave. A fact that a host repeats is kept once."""
    channels: list[tuple[Any, ...]] = []
    facts: dict[Fact, None] = {}
    counts: dict[Path, int] = {}
    for path in paths:
        before = len(channels) + len(facts)
        for found in read(path):
            if isinstance(found, Channel):
                channels.append(
                    (found.host, found.channel, found.src, found.dst, found.direction, found.transport, found.network, found.nic, found.gdr)
                )
            else:
                facts[found] = None
        counts[path] = len(channels) + len(facts) - before
    return {CHANNEL: channels, LIBRARY_FACT: [(fact.host, fact.name, fact.value) for fact in facts]}, counts, {}
