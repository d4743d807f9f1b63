"""Faults of the symptom oom-on-load, really produced: a real checkpoint, real ranks, a real limit, and a loader that is set wrongly.

The limit of a drill and of its control are the same: the default setting serves under it. A control that fails would mean that the limit,
not the setting, was the fault. What is killed is killed by a watcher at a cap of anonymous memory, or fails at RLIMIT_DATA.
"""

from __future__ import annotations

from functools import partial

from playbooks.drills import shared_memory
from playbooks.drills.drill import HEALTHY, Dose, Drill
from playbooks.drills.start import Limit, StartDrill

WEIGHTS = 192 << 20  # bytes of experts
ROOM = 72 << 20  # bytes: staging buffers, threads, warm-up
STRENGTHS = ("tight limit", "loose limit")


def _experts(dose: Dose) -> int:
    """Sizes differ by seed, so that no threshold fits one size only."""
    return WEIGHTS + dose.seed * (32 << 20)


def _weights(weights: int, strength: int) -> Limit:
    """All weights once, some room, and a part of them again."""
    return Limit(rise=ROOM + int(weights * (1.2, 1.5)[strength]))


def _shared(weights: int, strength: int) -> Limit:
    """Four ranks: nearly the whole checkpoint, of which each is to keep little more than a quarter."""
    return Limit(rise=int(weights * (0.95, 1.2)[strength]))


def _short(weights: int, strength: int) -> Limit:
    return Limit(data=int(weights * (0.5, 0.8)[strength]))


def _kept_twice(weights: int, strength: int) -> Limit:
    """Twice the weights fit, and the KV cache of `retained` on top does not."""
    return Limit(rise=ROOM + int(weights * (2.1, 2.3)[strength]))


def _kv(weights: int, strength: int) -> Limit:
    """The weights and some hundred MiB: the KV cache that is asked for is larger."""
    return Limit(data=weights + ((192 << 20), (256 << 20))[strength])


def _staged(weights: int, strength: int) -> Limit:
    """A /dev/shm that holds a part of the checkpoint."""
    return Limit(shared=int(weights * (0.5, 0.8)[strength]))


_drill = partial(StartDrill, weights=_experts)
_shared_memory = partial(_drill, limit=_staged, unavailable=shared_memory.unavailable)

STARTS: tuple[StartDrill, ...] = (
    _drill("oom.well", HEALTHY, "The default loader under the limit of the others", limit=_weights),
    _drill("oom.well-shared", HEALTHY, "Four ranks, the default loader under the limit of the others", limit=_shared, settings={"ep": 4}),
    _drill(
        "oom.whole-files", "oom.full-read-buffer", "Files are read whole before tensors are taken out", limit=_weights, style="whole-files"
    ),
    _drill(
        "oom.every-file", "oom.all-ranks-full-copy", "Every rank reads all files", limit=_shared, style="every-file", settings={"ep": 4}
    ),
    _drill("oom.listed", "oom.drained-iterator", "All tensors are listed before one is placed", limit=_weights, style="drained"),
    _shared_memory("oom.well-small-shm", HEALTHY, "The default loader beside a small /dev/shm"),
    _shared_memory("oom.shm-reserved", "oom.shm-exhausted", "Files are staged in reserved segments of a small /dev/shm", style="shared"),
    _shared_memory("oom.shm-mapped", "oom.shm-exhausted", "The same in segments that are only mapped", style="shared-unreserved"),
    _drill("oom.upcast", "oom.dtype-upcast", "bfloat16 weights kept in float32", limit=_weights, settings={"dtype": "float32"}),
    _drill("oom.construct", "oom.meta-fallback", "The model is built in real memory first", limit=_weights, style="construct"),
    _drill("oom.stack", "oom.repack-peak", "A list of experts is stacked", limit=_weights, style="stack"),
    _drill(
        "oom.views",
        "oom.retained-source",
        "Views hold tensors twice their size",
        limit=_kept_twice,
        style="views",
        settings={"kv_blocks": 8192},
    ),
    _drill("oom.short", "oom.plan-does-not-fit", "A limit below the weights", limit=_short),
    _drill("oom.kv", "oom.kv-no-room", "A KV cache larger than what is left", limit=_kv, settings={"kv_blocks": 1 << 15}),
)

DRILLS: tuple[Drill, ...] = tuple(one.drill(STRENGTHS) for one in STARTS)
