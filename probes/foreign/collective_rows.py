"""Debug lines of collective libraries as rows of the tables `channel` and `library_fact`; what stopped the start, as events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probes.foreign import start_log
from probes.foreign.collective_log import Channel, Fact, read
from traces.schema import CHANNEL, EVENT, LIBRARY_FACT
from traces.table import Table


def rows(paths: Sequence[Path]) -> tuple[dict[Table, list[tuple[Any, ...]]], dict[Path, int], dict[Path, str]]:
    """Rows of these tables, and how many each file gave. A fact that a host repeats is kept once."""
    channels: list[tuple[Any, ...]] = []
    facts: dict[Fact, None] = {}
    signs: list[start_log.Sign] = []
    counts: dict[Path, int] = {}
    for path in paths:
        before = len(channels) + len(facts) + len(signs)
        for found in read(path):
            if isinstance(found, Channel):
                channels.append(
                    (found.host, found.channel, found.src, found.dst, found.direction, found.transport, found.network, found.nic, found.gdr)
                )
            else:
                facts[found] = None
        signs += start_log.read(path)
        counts[path] = len(channels) + len(facts) + len(signs) - before
    stated = [(fact.host, fact.name, fact.value) for fact in facts]
    return {CHANNEL: channels, LIBRARY_FACT: stated, EVENT: start_log.events(signs)}, counts, {}
