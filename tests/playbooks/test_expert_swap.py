"""tail.expert-swap: hand-made windows of tiers beside steps of known length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from playbooks.runner import diagnose
from traces import schema
from traces.producer import Recorder
from traces.run import Run, create_run

SECOND = 10**9
T0 = 1_790_000_000 * SECOND
STEPS, LONG = 60, 50_000_000  # steps of 50 ms, twenty a window


def written(root: Path, stalls: dict[int, float] | None, windows: int = 3) -> Run:
    """Ranks 0 and 1; `stalls` are the shares of their steps' time they stood still for experts. None: no experts in tiers."""
    run = create_run(engine="workbench", model="m", root=root, world_size=2)
    recorder = Recorder.open(run, "rank0", ship=False)
    for step in range(STEPS):
        for rank in (0, 1):
            recorder.row(
                schema.STEP, step=step, rank=rank, stage=0, micro_batch=0, ts=T0 + step * LONG, dur=LONG, cpu=LONG, sync=0,
                prefill_tokens=0, decode_tokens=8, context_tokens=100, running=8, waiting=0, kv_used=1, kv_total=9, preempted=0,
                placement=0, requests=[],
            )  # fmt: skip
    for rank, share in (stalls or {}).items():
        for window in range(windows):
            attrs: dict[str, Any] = {
                "needed": 400, "misses": 100, "miss_bytes": 1 << 20, "stall_ns": int(share * 20 * LONG), "fetch_ns": 2 * SECOND,
                "frames": 8, "experts": 32, "frame_bytes": 4096, "step_first": 20 * window, "step_last": 20 * window + 19,
            }  # fmt: skip
            recorder.row(schema.EVENT, ts=T0 + window * SECOND, dur=SECOND - 1, rank=rank, kind="expert_tier", attrs=attrs)
    recorder.close()
    run.update(state="closed")
    return run


@pytest.mark.parametrize(
    ("stalls", "windows", "outcome", "observed"),
    [
        (None, 3, "not_applicable", None),
        ({0: 0.02, 1: 0.05}, 3, "pass", 0.05),
        ({0: 0.02, 1: 0.2}, 3, "warn", 0.2),
        ({0: 0.5, 1: 0.1}, 3, "fail", 0.5),
        ({0: 0.5, 1: 0.5}, 2, "skipped", None),  # two seconds: the tiers were filling up
    ],
)
def test_stalls_are_held_against_the_steps(tmp_path: Path, stalls, windows: int, outcome: str, observed: float | None) -> None:
    found = diagnose(written(tmp_path, stalls, windows), "tail-latency", argv=())
    (check,) = [one for one in found.checks if one.id == "tail.expert-swap"]
    assert (check.outcome, check.observed) == (outcome, observed), check.summary
    findings = [one for one in found.findings if one.id == "tail.expert-swap"]
    assert len(findings) == (outcome in ("warn", "fail"))
    if outcome == "fail":
        (one,) = findings
        assert one.subject.labels["ranks"] == [0]
        assert one.impact is not None and one.impact.value == 25.0  # half of 50 ms
        assert "75% of those it needed" in one.summary and "hold all" in str(one.remedy[0].config)
