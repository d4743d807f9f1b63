"""The whole story on one screen: a server that slows down is watched, diagnosed and repaired by a person with three keys."""

from __future__ import annotations

import asyncio
import re
import shutil
import time

import msgspec
import pytest

from playbooks.tail_latency import stale_placement as fault
from probes.traffic.generator import run_traffic
from probes.traffic.plan import TrafficPlan
from runtime.control_client import ControlClient
from runtime.launcher import start_server
from runtime.serve_config import ServeConfig
from runtime.shipped import shapes_moe
from traces.producer import Recorder
from traces.store import open_run

pytestmark = [
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: apt-get install tmux"),
    pytest.mark.timeout(1200),
]

PATIENCE = 420.0  # seconds; sending the same traffic twice takes minutes on a busy machine
HOT_RANK = 2


@pytest.fixture
def server(tmp_path):
    config = ServeConfig(model=str(shapes_moe()), name="shapes-moe", ep=4, port=0, detail_every=1, max_tokens_per_step=384)
    with start_server(msgspec.structs.replace(config, run_root=str(tmp_path))) as running:
        yield running


def prompts(phase, requests):
    """Long prompts, one token of answer: the work of the experts is in the prompts."""
    return TrafficPlan(mix="prefill-heavy", concurrency=16, requests=requests, image_share=0.25, turns=24, max_tokens=1, phase=phase)


def pack(run):
    """The most popular experts of every layer on one rank, as under a placement made for other traffic."""
    until = time.monotonic() + 30
    with open_run(run) as store:
        while not store.rows("SELECT 1 FROM expert_load LIMIT 1") and time.monotonic() < until:
            time.sleep(0.2)  # windows of counts are written once a second
        counts = fault.measured_counts(store, run.info.created)
    stale = fault.stale(counts, 4, HOT_RANK)
    with ControlClient.for_run(run) as control:
        control.set_placement([list(layer) for layer in stale.layers], source="control", reason="made for other traffic")
    return stale


def test_a_person_finds_the_uneven_experts_and_repairs_them(server, terminal, tui):
    recorder = Recorder.open(server.run, "traffic-test")
    term = terminal()
    term.run(tui(server.run), TERM="xterm-256color", COLORTERM="truecolor")
    term.wait(r"● live .* shapes-moe +dp4 ep4", patience=PATIENCE)

    asyncio.run(run_traffic(prompts("warm-up", 32), server.url, recorder))
    assert recorder.flush(30)
    stale = pack(server.run)
    asyncio.run(run_traffic(prompts("slow", 96), server.url, recorder))
    assert recorder.flush(30)

    text = term.wait(r"rebalance +ranks 0-3 .*placement 1")
    assert re.search(r"prefill tokens/s [\d,]+", text)
    term.type("2", "w")
    text = term.wait(r"holds|served by")
    hottest = re.search(r"layer (\d+) · expert (\d+)", term.wait(r"layer \d+ · expert \d+"))
    assert hottest is not None
    assert int(hottest[2]) in stale.experts[int(hottest[1])]
    assert re.search(rf"served by rank {HOT_RANK} slot", text) and "placement v1" in text

    term.type("d")
    # The same skew is a problem where the step waits for it and a warning where it costs less than a twentieth of the step.
    text = term.wait(r"(✖ problem|▲ warning) +\d+ checks in", patience=PATIENCE)
    assert re.search(r"(✖ fail|▲ warn) +Expert load uneven", text) and f"rank {HOT_RANK} computes" in text
    term.type("a")
    assert "Move experts" in term.wait(r"Apply the remedy to the live run\?")
    term.type("y")
    term.wait(r"carrying out the remedy: measuring (before|after)", patience=PATIENCE)
    text = term.wait(r"(improved|unchanged|worse|undetermined)  ", patience=PATIENCE)
    assert "✔ improved" in text and re.search(r"before +after +change", text)
    with ControlClient.for_run(server.run) as control:
        assert control.state()["placement"] == 2
    term.type("q")
    term.wait(r"(?m)^\$ *$")
    recorder.close()
