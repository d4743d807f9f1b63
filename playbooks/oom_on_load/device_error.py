"""Which cause a failed allocation on a device points to: by its phase, the functions on its stack, and the allocator's numbers.

The order is the reference's S1.2: what the message itself says, then who asked for memory, then what the allocator held back, then the
phase. One answer, so that the causes of this family exclude one another.
"""

from __future__ import annotations

import re
from typing import Any

from playbooks.case import Case
from playbooks.check import Result, not_applicable, passed, skipped
from playbooks.document import Remedy
from playbooks.oom_on_load.budget import mib, verdict
from playbooks.oom_on_load.kv_no_room import WORDS as KV_WORDS
from playbooks.oom_on_load.shm_exhausted import WORDS as SHM_WORDS
from playbooks.oom_on_load.story import RankStory, Story, story
from playbooks.oom_on_load.thresholds import CACHED, NEIGHBOUR

DEVICE = re.compile(
    r"(?:CUDA|HIP|NPU|XPU|MUSA) out of memory|OutOfMemoryError|not enough GPU memory|NCCL error|unhandled cuda error", re.IGNORECASE
)
PINNED = re.compile(r"cudaHostAlloc|page-locked|pinned memory", re.IGNORECASE)
STARTUP = re.compile(r"less than desired GPU memory utilization", re.IGNORECASE)
COMMUNICATION = (
    "rearrange", "eplb", "new_group", "init_process_group", "all_to_all", "all_gather", "all_reduce", "deep_ep", "nccl", "rebalance",
)  # fmt: skip
VISION = ("multimodal", "vision", "visual", "encoder", "image")
CONVERSION = ("process_weights_after_loading", "post_load", "repack", "shuffle", "swizzle", "marlin")
QUANTISATION = ("online", "quantize", "scaled_fp8_quant", "per_token_quant", "fp8")


def cause_of(found: Story) -> str:
    """The id of one cause; "" when the log shows no failed allocation on a device, or none that decides."""
    text = "\n".join(found.errors)
    if not text or KV_WORDS.search(text) or SHM_WORDS.search(text):
        return ""
    if PINNED.search(text):
        return "oom.pinned-rounding"
    if STARTUP.search(text):
        return "oom.neighbour-process"
    if not DEVICE.search(text):
        return ""
    frames = " ".join(str(name) for name in found.facts.get("frames", [])).lower()
    return _asked(frames, text) or _held_back(found.facts) or _BY_PHASE.get(str(found.facts.get("failed_in", "")), "")


def _asked(frames: str, text: str) -> str:
    if any(word in frames for word in COMMUNICATION) or re.search("NCCL error|unhandled cuda error", text):
        return "oom.comm-buffers"
    if any(word in frames for word in CONVERSION):
        return "oom.online-quant-peak" if any(word in frames for word in QUANTISATION) else "oom.repack-peak"
    if any(word in frames for word in VISION) and "profile" in frames:
        return "oom.mm-profile"
    return ""


def _held_back(facts: dict[str, Any]) -> str:
    total = float(facts.get("device_total") or 0)
    cached, requested = float(facts.get("cached") or 0), float(facts.get("requested") or 0)
    if total and cached > CACHED * total and cached > requested:
        return "oom.allocator-cache"
    if total and float(facts.get("neighbour") or 0) > NEIGHBOUR * total:
        return "oom.neighbour-process"
    return ""


_BY_PHASE = {
    "capture": "oom.graph-capture",
    "convert": "oom.repack-peak",
    "load": "oom.plan-does-not-fit",
    "profile": "oom.plan-does-not-fit",
}


def device_check(case: Case, cause: str, title: str, remedy: Remedy, excess: str = "requested", score: float = 0.85) -> Result:
    """The result of a cause that only a device's allocator can show. `excess`: the fact that says how many bytes it is about."""
    found = story(case)
    if not found.foreign:
        if any(sample.allocated is not None for one in found.ranks.values() for sample in one.samples):
            return skipped("the text of a failed allocation; give the engine's log with --log")
        return not_applicable("no device memory in this run")
    pointed = cause_of(found)
    if pointed != cause:
        return passed(f"the log points to {pointed}" if pointed else "the log shows no failed allocation of this kind")
    facts = found.facts
    one = found.worst or RankStory(0, plan={"limit_device": facts.get("device_total")})
    numbers = ", ".join(
        f"{name.replace('_', ' ')} {mib(float(facts[name]))}"
        for name in ("requested", "free", "cached", "neighbour", "weights", "kv_available", "graph", "device_free", "device_total")
        if facts.get(name) is not None
    )
    said = f"It failed in phase {facts.get('failed_in') or 'unknown'}: {found.errors[0][:160]} ({numbers})."
    size = int(float(facts.get(excess) or 0))
    return verdict(case, cause, title, one, [one.rank], size, said, float(size), 0.0, "bytes", remedy, score, "supported", fatal=True)
