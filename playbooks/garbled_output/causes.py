"""The causes of garbled-output, in the order of the reference: what was sent, what was loaded, what is computed."""

from __future__ import annotations

from playbooks.check import Check
from playbooks.garbled_output import (
    attention,
    capacity_drop,
    diverging_tap,
    double_bos,
    endpoint_answer,
    expert_layout,
    expert_map,
    length_boundary,
    norm,
    numeric_overflow,
    prefix_cache,
    quant_scale,
    rope,
    router,
    sampling_defaults,
    shared_expert_reduce,
    stop_set,
    template,
    tie_mismatch,
    tokenizer_ids,
    weight_corrupt,
    weight_missing,
    weight_unread,
)

CHECKS: tuple[Check, ...] = tuple(
    module.CHECK
    for module in (
        template, tokenizer_ids, double_bos, stop_set, sampling_defaults, weight_missing, weight_unread, tie_mismatch, quant_scale,
        weight_corrupt, numeric_overflow, length_boundary, endpoint_answer, prefix_cache, norm, rope, router, capacity_drop,
        expert_layout, expert_map, shared_expert_reduce, attention, diverging_tap,
    )
)  # fmt: skip
