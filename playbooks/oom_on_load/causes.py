"""The causes of oom-on-load, cheapest question first."""

from __future__ import annotations

from playbooks.check import Check
from playbooks.oom_on_load import (
    all_ranks_full_copy,
    allocator_cache,
    comm_buffers,
    drained_iterator,
    dtype_upcast,
    full_read_buffer,
    graph_capture,
    kv_no_room,
    meta_fallback,
    mm_profile,
    neighbour_process,
    online_quant_peak,
    page_cache_cgroup,
    pinned_rounding,
    plan_does_not_fit,
    repack_peak,
    retained_source,
    shm_exhausted,
)

CHECKS: tuple[Check, ...] = (
    plan_does_not_fit.CHECK,
    dtype_upcast.CHECK,
    kv_no_room.CHECK,
    shm_exhausted.CHECK,
    meta_fallback.CHECK,
    all_ranks_full_copy.CHECK,
    drained_iterator.CHECK,
    full_read_buffer.CHECK,
    repack_peak.CHECK,
    retained_source.CHECK,
    page_cache_cgroup.CHECK,
    allocator_cache.CHECK,
    neighbour_process.CHECK,
    mm_profile.CHECK,
    graph_capture.CHECK,
    comm_buffers.CHECK,
    pinned_rounding.CHECK,
    online_quant_peak.CHECK,
)
