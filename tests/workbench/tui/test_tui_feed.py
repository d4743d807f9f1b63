"""A live run: the collector answers, dies, and comes back while the screen is open."""

from __future__ import annotations

import time

import pytest

from traces import schema
from traces.collector import process
from traces.errors import Unreachable
from traces.producer import Recorder
from traces.run import create_run
from workbench.tui.app import WorkbenchApp
from workbench.tui.opening import Opener

DEADLINE = 60.0


@pytest.fixture
def live(tmp_path):
    """A run with a collector and one producer that has stepped for a while."""
    run = create_run(engine="workbench", model="shapes-moe", root=tmp_path, world_size=1, layout={"ep": 1})
    collector = process.start(run)
    recorder = Recorder.open(run, "rank0")
    step_now(recorder, 0)
    yield run, collector, recorder
    recorder.close()
    if (address := run.collector()) is not None and address.pid != collector.pid:
        import os
        import signal

        os.kill(address.pid, signal.SIGTERM)
    collector.stop()


def step_now(recorder, step):
    recorder.row(
        schema.STEP, step=step, rank=0, stage=0, micro_batch=0, ts=time.time_ns() - 2 * 10**9, dur=10**6, sync=0, prefill_tokens=0,
        decode_tokens=7, context_tokens=0, running=3, waiting=0, kv_used=1, kv_total=4, preempted=0, placement=0, requests=[],
    )  # fmt: skip
    assert recorder.flush(DEADLINE)


async def until(pilot, reading, words):
    """Waits for the screen to say something; a screen that never does is a failure."""
    end = time.monotonic() + DEADLINE
    while words not in (text := reading(pilot)):
        assert time.monotonic() < end, f"{words!r} did not come up in\n{text}"
        await pilot.pause(0.2)
    return text


def test_a_collector_that_dies_is_a_banner_and_its_return_ends_it(live, drive, reading):
    run, collector, recorder = live

    async def scenario(pilot):
        text = await until(pilot, reading, "● live")
        assert "running 3" in text
        collector.kill()
        text = await until(pilot, reading, "trying again")
        assert "◌ waiting" in text and "running 3" in text
        text = await until(pilot, reading, "the collector is gone")
        assert "running 3" in text
        replacement = process.start(run)
        step_now(recorder, 1)
        await until(pilot, reading, "● live")
        assert "trying again" not in reading(pilot)
        replacement.stop()
        await until(pilot, reading, "■ recorded")

    app = WorkbenchApp(Opener(run), run, interval=0.2, plain=False)
    drive(app, scenario)


def test_a_collector_that_does_not_return_leaves_a_crashed_run_to_read(live):
    run, collector, _ = live
    now = [0.0]
    opener = Opener(run, patience=30.0, clock=lambda: now[0])
    with opener() as store:
        assert store.live
    collector.kill()
    with pytest.raises(Unreachable):
        opener()
    now[0] = 29.0
    with pytest.raises(Unreachable):
        opener()
    now[0] = 31.0
    with opener() as store:
        assert not store.live and run.state == "crashed"
        assert store.rows("SELECT running FROM step") == [{"running": 3}]
