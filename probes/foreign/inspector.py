"""Measurements of NCCL's inspector plugin: every collective's size, time and bandwidth on a rank, as JSON lines or Prometheus text.

Forms: NCCL repository, plugins/profiler/inspector (JSON lines v4, text files for the node exporter v5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from probes.foreign.bounds import RANKS, TIMES, finite, within
from traces.errors import UsageError
from traces.schema import METRIC
from traces.table import Table

LARGEST = 2 << 30  # bytes of one file
MOST = 5_000_000  # lines
GIGA = 1e9
_SAMPLE = re.compile(r"(nccl_\w+?)_(bandwidth_gbs|time_microseconds)\{(.*)\} ([0-9.eE+-]+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def claims(path: Path, head: bytes) -> bool:
    return (
        (head.lstrip().startswith(b"{") and b'"coll_perf"' in head)
        or b"nccl_bus_bandwidth_gbs{" in head
        or b"nccl_p2p_bus_bandwidth_gbs{" in head
    )


def rows(paths: Sequence[Path]) -> tuple[dict[Table, list[tuple[Any, ...]]], dict[Path, int], dict[Path, str]]:
    """Metrics `nccl.bus_bandwidth` (bytes/s) and `nccl.time` (s) with labels collective, bytes or size, rank or gpu, ranks, nodes, host.

    A damaged line (a file that is being written ends in one) is left out with a warning.

    Raises UsageError for a file of which no line is known.
    """
    found: list[tuple[Any, ...]] = []
    counts: dict[Path, int] = {}
    warned: dict[Path, str] = {}
    for path in paths:
        before, damaged = len(found), 0
        for one in _read(path):
            if one is None:
                damaged += 1
                continue
            ts, name, value, labels = one
            found.append((ts, "inspector", name, "gauge", value, None, None, None, json.dumps(labels)))
        counts[path] = len(found) - before
        if damaged:
            warned[path] = f"{damaged} damaged line{'s' if damaged > 1 else ''} left out"
        if not counts[path]:
            raise UsageError(f"no line of {path.name} is a measurement of NCCL's inspector", "give a file of its dump folder")
    return {METRIC: found}, counts, warned


Measured = tuple[int, str, float, dict[str, Any]]


def _read(path: Path) -> Iterator[Measured | None]:
    """None for a damaged line."""
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path.name} has more than {LARGEST} bytes", "import a part of it")
        stamp = path.stat().st_mtime_ns  # the text form states no time
        with path.open(errors="replace") as file:
            for number, line in enumerate(file):
                if number >= MOST:
                    return
                try:
                    yield from _json(line) if line.startswith("{") else _text(line.strip(), stamp)
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
                    yield None
    except OSError as error:
        raise UsageError(f"{path.name} cannot be read: {error.strerror}") from error


def _json(line: str) -> list[Measured]:
    document = json.loads(line)
    header, meta, perf = document["header"], document["metadata"], document["coll_perf"]
    ts = within(int(meta["dump_timestamp_us"]) * 1_000, TIMES)
    labels = {
        "collective": str(perf["coll"]),
        "seq": int(perf["coll_sn"]), "bytes": int(perf["coll_msg_size_bytes"]), "comm": str(header["id"]),
        "rank": within(int(header["rank"]), RANKS), "ranks": int(header["n_ranks"]), "nodes": int(header["nnodes"]),
        "host": str(meta["hostname"]),
    }  # fmt: skip
    rate, seconds = finite(float(perf["coll_busbw_gbs"]) * GIGA), finite(float(perf["coll_exec_time_us"]) / 1e6)
    return [(ts, "nccl.bus_bandwidth", rate, labels), (ts, "nccl.time", seconds, labels)]


def _text(line: str, ts: int) -> list[Measured]:
    found = _SAMPLE.match(line)
    if found is None:
        return []
    kind = {"nccl_bus": "nccl", "nccl_collective_exec": "nccl", "nccl_p2p_bus": "nccl.p2p", "nccl_p2p_exec": "nccl.p2p"}.get(found[1])
    if kind is None:
        return []
    told = dict(_LABEL.findall(found[3]))
    labels: dict[str, Any] = {
        "collective": told.get("collective") or told.get("p2p_operation", ""),
        "size": told.get("message_size", ""), "gpu": told.get("gpu", ""),
        "comm": told.get("comm_name", ""), "ranks": int(told.get("nranks") or 0), "nodes": int(told.get("n_nodes") or 0),
        "host": told.get("node", ""), "algorithm": told.get("algo_proto", ""),
    }  # fmt: skip
    value = float(found[4])
    if found[2] == "bandwidth_gbs":
        return [(ts, f"{kind}.bus_bandwidth", finite(value * GIGA), labels)]
    return [(ts, f"{kind}.time", finite(value / 1e6), labels)]
