"""What a rank is about to load, and what it is allowed to use: said before the first byte, so that a rank that dies has said it."""

from __future__ import annotations

import math
import os
import resource
from collections import Counter
from typing import Any

import torch

from probes import cgroup
from probes.machine import shared_memory
from probes.memory import resident
from probes.procfile import fields, kib, read_text
from runtime.planner import RankPlan
from runtime.step_rows import RowSink
from traces import schema

SHARED = "/dev/shm"


def record_load_plan(
    recorder: RowSink | None, rank: int, plan: RankPlan, dtype: torch.dtype, checkpoint_bytes: int, beside: int = 0
) -> None:
    """One event `load_plan`. Bytes: of the whole checkpoint, to read, to keep (in the dtype computed with), of the largest target;
    `beside` is kept too, and is in no plan."""
    if recorder is None:
        return
    item = dtype.itemsize
    sizes = [math.prod(shape) * (4 if name in plan.precise else item) for name, shape in plan.targets.items()]
    stored: Counter[str] = Counter()
    for part in plan.parts:
        stored[part.dtype] += part.nbytes
        if part.scales is not None:
            stored["scales"] += part.scales.nbytes
    facts: dict[str, Any] = {
        "checkpoint_bytes": checkpoint_bytes,
        "planned_read": sum(stored.values()),
        "planned_kept": sum(sizes) + beside,
        "largest": max(sizes, default=0),
        "files": len({part.file for part in plan.parts}),
        "stored": dict(stored),
        "kept_item": item,
        **limits(),
    }
    recorder.row(schema.EVENT, dur=0, rank=rank, kind="load_plan", attrs=facts)


def placing_facts() -> dict[str, int | None]:
    """Bytes this process holds when the first value is placed."""
    now = resident(read_text("/proc/self/status"))
    return {"anon": now.anon if now is not None else None, "file": now.file if now is not None else None}


def limits() -> dict[str, int | None]:
    """Bytes this process may use, as every limit says it; None: no limit."""
    now = resident(read_text("/proc/self/status"))
    shared = shared_memory(SHARED)
    return {
        "base_anon": now.anon if now is not None else None,
        "limit_cgroup": cgroup.memory(cgroup.find("memory")).limit,
        "limit_data": _resident_limit(resource.RLIMIT_DATA, "VmData"),
        "limit_as": _resident_limit(resource.RLIMIT_AS, "VmSize"),
        "host_total": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "shm_size": shared["size"],
        "shm_free": shared["free"],
    }


def _resident_limit(number: int, counted: str) -> int | None:
    """A limit of address space as one of anonymous memory: what is still allowed, above what is resident now."""
    value = resource.getrlimit(number)[0]
    if value == resource.RLIM_INFINITY:
        return None
    status = fields(read_text("/proc/self/status"))
    used, anon = kib(status.get(counted)), kib(status.get("RssAnon"))
    return None if used is None or anon is None else max(0, value - used) + anon
