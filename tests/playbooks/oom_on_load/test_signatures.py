"""The measured signatures of the reference (S1.3: 192 MiB, bfloat16) lead to their causes; healthy ones to none.

In every case the rank was killed (-9) at the numbers of its row, or served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MIB = 1 << 20
PLAN = {
    "checkpoint_bytes": 192 * MIB,
    "planned_read": 192 * MIB,
    "planned_kept": 192 * MIB,
    "largest": 64 * MIB,
    "kept_item": 2,
    "stored_item": 2,
    "stored": {"BF16": 192 * MIB},
    "base_anon": 150 * MIB,
}
QUARTER = PLAN | {"planned_read": 48 * MIB, "planned_kept": 48 * MIB}
SERVED = [("kv_cache", 192, 64), ("serve", 200, 64)]


def case(name: str) -> tuple[str | None, dict[str, Any]]:
    """Expected first finding, and the arguments of a rank."""
    table: dict[str, tuple[str | None, dict[str, Any]]] = {
        "stream": (None, {"samples": [("load", 0, 60), ("load", 96, 160), ("load", 192, 256), *SERVED], "all_read": 3, "plan": PLAN}),
        "quarter": (
            None,
            {"samples": [("load", 0, 60), ("load", 48, 112), ("kv_cache", 48, 64), ("serve", 60, 64)], "all_read": 2, "plan": QUARTER},
        ),
        "full read": (
            "oom.full-read-buffer",
            {"samples": [("load", 0, 60), ("load", 200, 61), ("load", 385, 61)], "plan": PLAN, "exit_code": -9},
        ),
        "listed": (
            "oom.drained-iterator",
            {"samples": [("load", 0, 60), ("load", 192, 61), ("load", 385, 61)], "plan": PLAN | {"files": 4}, "placing": (192, 61)}
            | {"exit_code": -9},
        ),
        "listed as mapped tensors": (
            "oom.drained-iterator",
            {"samples": [("load", 0, 60), ("load", 1, 256), ("load", 96, 256)], "plan": PLAN | {"files": 4}, "placing": (1, 256)}
            | {"exit_code": -9},
        ),
        "full read, file by file": (
            "oom.full-read-buffer",
            {"samples": [("load", 0, 60), ("load", 200, 61), ("load", 385, 61)], "plan": PLAN | {"files": 4}, "placing": (48, 61)}
            | {"exit_code": -9},
        ),
        "full read of one file": (
            "oom.full-read-buffer",
            {"samples": [("load", 0, 60), ("load", 200, 61), ("load", 385, 61)], "plan": PLAN | {"files": 1}, "placing": (192, 61)}
            | {"exit_code": -9},
        ),
        "shared memory filled": (
            "oom.shm-exhausted",
            {"samples": [("load", 0, 60), ("load", 20, 61)], "plan": PLAN | {"shm_size": 96 * MIB, "shm_free": 96 * MIB}}
            | {"exit_code": -7, "shm_free": 0},
        ),
        "upcast": (
            "oom.dtype-upcast",
            {
                "samples": [("load", 0, 60), ("load", 200, 160), ("load", 385, 256)],
                "plan": PLAN | {"planned_kept": 384 * MIB},
                "exit_code": -9,
            },
        ),
        "every rank": (
            "oom.all-ranks-full-copy",
            {"samples": [("load", 0, 60), ("load", 100, 61), ("load", 192, 61)], "plan": QUARTER, "exit_code": -9},
        ),
        "stack": (
            "oom.repack-peak",
            {
                "samples": [("load", 0, 60), ("load", 192, 256), ("load", 193, 64), ("load", 384, 64)],
                "all_read": 3,
                "plan": PLAN,
                "exit_code": -9,
            },
        ),
        "construct": (
            "oom.meta-fallback",
            {"samples": [("load", 0, 60), ("load", 200, 60)], "reading": None, "plan": PLAN, "exit_code": -9},
        ),
        "views": (
            "oom.retained-source",
            {
                "samples": [("load", 0, 60), ("load", 193, 160), ("kv_cache", 193, 64), ("kv_cache", 260, 64)],
                "all_read": 3,
                "plan": QUARTER,
                "exit_code": -9,
            },
        ),
        "kept maps": (
            "oom.retained-source",
            {
                "samples": [("load", 0, 60), ("load", 193, 256), ("kv_cache", 193, 256), ("serve", 200, 256)],
                "all_read": 3,
                "plan": PLAN,
                "exit_code": -9,
            },
        ),
        "short": (
            "oom.plan-does-not-fit",
            {"samples": [("load", 0, 60)], "plan": PLAN | {"limit_data": 250 * MIB}, "oom": "DefaultCPUAllocator: can't allocate memory"},
        ),
        "kv": (
            "oom.kv-no-room",
            {
                "samples": [("load", 0, 60), ("load", 192, 61), ("kv_cache", 192, 61)],
                "all_read": 2,
                "plan": PLAN | {"limit_data": 450 * MIB},
                "oom": "DefaultCPUAllocator: can't allocate memory",
            },
        ),
    }
    return table[name]


NAMES = ["stream", "quarter", "full read", "upcast", "every rank", "stack", "construct", "views", "kept maps", "short", "kv"]
NAMES += ["listed", "listed as mapped tensors", "full read, file by file", "full read of one file", "shared memory filled"]


@pytest.mark.parametrize("name", NAMES)
def test_signature(name: str, loaded: Callable[..., Any], load: Any, first: Callable[..., Any]) -> None:
    expected, arguments = case(name)
    found, diagnosis = first(loaded(load(**arguments)))
    assert found == expected, [(check.id, check.outcome, check.summary) for check in diagnosis.checks]
    assert diagnosis.verdict == ("healthy" if expected is None else "problem")
    if expected is not None:
        top = diagnosis.findings[0]
        assert top.subject.labels["budget"]["planned to keep"] and top.remedy and top.impact is not None and "MiB" in top.summary


def test_a_bus_error_with_shared_memory_free_is_a_truncated_file(loaded: Callable[..., Any], load: Any, first: Callable[..., Any]) -> None:
    room = {"shm_size": 96 * MIB, "shm_free": 96 * MIB}
    _, found = first(loaded(load([("load", 0, 60), ("load", 20, 61)], plan=PLAN | room, exit_code=-7, shm_free=90 * MIB)))
    check = next(check for check in found.checks if check.id == "oom.shm-exhausted")
    assert check.outcome == "pass" and "truncated" in check.summary


def test_waste_with_room_to_spare_is_a_note(loaded: Callable[..., Any], load: Any, first: Callable[..., Any]) -> None:
    """A loader that doubles its memory and serves is no problem, and not hidden either."""
    samples = [("load", 0, 60), ("load", 385, 61), ("kv_cache", 192, 64), ("serve", 200, 64)]
    found, diagnosis = first(loaded(load(samples=samples, all_read=3, plan=PLAN)))
    assert found is None and diagnosis.verdict == "healthy"
    assert [(one.id, one.severity) for one in diagnosis.findings] == [("oom.full-read-buffer", "info")]


def test_without_samples_nothing_is_healthy(loaded: Callable[..., Any], load: Any, first: Callable[..., Any]) -> None:
    found, diagnosis = first(loaded(load(samples=[], plan=PLAN)))
    assert found is None and diagnosis.verdict == "inconclusive"
