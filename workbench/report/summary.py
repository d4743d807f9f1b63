"""The head of the page: what ran, where, when, and the few numbers that a reader asks for first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from probes.fingerprint import flat
from traces.store import Store
from workbench.report.scope import Scope, clock
from workbench.report.units import count, duration, size

REQUESTS = """
SELECT count(*) AS n, count(*) FILTER (status <> 'ok') AS failed, quantile_cont(dur, 0.5) AS p50, quantile_cont(ttft, 0.5) AS ttft,
       count(*) FILTER (image_tokens > 0) AS pictures
FROM request
"""
STEPS = "SELECT count(DISTINCT step) AS n, sum(prefill_tokens) AS prefill, sum(decode_tokens) AS decode FROM step WHERE stage = 0"
MEMORY = "SELECT max(rss_anon + rss_shmem) AS peak FROM memory WHERE rank IS NOT NULL"
VERSIONS = (("python", "python.version"), ("torch", "packages.torch"), ("", "os.distribution"), ("kernel", "os.kernel"), ("", "cpu.model"))


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and a value of the page's head."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Tile:
    """A number to read from a distance, with a word below it."""

    value: str
    name: str
    note: str = ""


def facts(store: Store, scope: Scope, version: str) -> list[Fact]:
    info = store.info
    layout = " · ".join(f"{name} {value}" for name, value in info.layout.items() if value > 1)
    window = f"{clock(scope.t0)}, {duration(scope.t1 - scope.t0)}" if scope.t1 > scope.t0 else clock(scope.t0)
    found = [
        Fact("run", info.id),
        Fact("model", f"{info.model}"),
        Fact("engine", f"{info.engine}, {info.world_size} ranks" + (f" ({layout})" if layout else "")),
        Fact("window", window),
        Fact("state", "live" if store.live else "crashed" if info.state == "running" else info.state),
        *environment(dict(info.fingerprints or {})),
        Fact("workbench", f"{version}, schema {info.schema_version}"),
    ]
    if info.command:
        found.append(Fact("command", shortened(" ".join(map(str, info.command)))))
    return found


def shortened(text: str, most: int = 90) -> str:
    """Text that fits two lines of the head."""
    return text if len(text) <= most else text[: most - 1] + "…"


def environment(fingerprints: dict[str, Any]) -> list[Fact]:
    """The versions of the producers, each once, and every different value where they do not agree."""
    flat_ones = [dict(flat(one)) for one in fingerprints.values()]
    words = []
    for word, key in VERSIONS:
        seen = sorted({str(one[key]) for one in flat_ones if one.get(key) is not None})
        if seen:
            words.append(f"{word} {' / '.join(seen[:3])}".strip())
    return [Fact("environment", ", ".join(words))] if words else []


def tiles(store: Store) -> list[Tile]:
    requests, steps, memory = store.rows(REQUESTS)[0], store.rows(STEPS)[0], store.rows(MEMORY)[0]
    failed = f"{count(requests['failed'])} failed" if requests["failed"] else "none failed"
    pictures = f"{count(requests['pictures'])} with pictures, {failed}"
    return [
        Tile(count(requests["n"]), "requests", pictures if requests["n"] else ""),
        Tile(duration(requests["p50"]), "median answer", f"first token {duration(requests['ttft'])}" if requests["n"] else ""),
        Tile(
            count((steps["prefill"] or 0) + (steps["decode"] or 0)), "tokens computed", f"{count(steps['decode'] or 0)} of them generated"
        ),
        Tile(count(steps["n"]), "engine steps", ""),
        Tile(size(memory["peak"]), "largest rank", "anonymous and shared memory"),
    ]
