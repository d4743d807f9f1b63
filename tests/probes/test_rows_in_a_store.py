"""What the probes write arrives in a store through the real recorder, and the views read it."""

import asyncio
import gc
import os

from probes.gc_pauses import GcPauses
from probes.host import HostSampler
from probes.memory import MemorySampler
from probes.nic import NicSampler
from probes.recorder import Recorder
from probes.stacks import record_stacks
from probes.traffic.generator import run_traffic
from probes.traffic.plan import TrafficPlan
from traces.run import create_run
from traces.store import open_run


def test_samples_of_every_kind(tmp_path):
    run = create_run(engine="test", model="none", root=tmp_path)
    with Recorder.open(run, "rank0", ship=False) as recorder:
        others = HostSampler(recorder, 0, 60), NicSampler(recorder, 60), GcPauses(recorder, 0, 60, 0)
        with MemorySampler(recorder, rank=0, interval=60) as memory, others[0], others[1], others[2]:
            memory.phase("load")
            memory.phase("serve")
            gc.collect()
        record_stacks(recorder, os.getpid(), rank=0, nonblocking=True)
    with open_run(run) as store:
        phases = store.rows("SELECT phase, samples, hwm FROM memory_phase WHERE rank = 0 ORDER BY phase")
        assert [row["phase"] for row in phases] == ["load", "serve", "start"]
        assert all(row["samples"] >= 2 and row["hwm"] > 1 << 20 for row in phases)
        assert store.rows("SELECT count(*) AS n FROM host WHERE cpu_time > 0 AND rank = 0")[0]["n"] == 2
        assert store.rows("SELECT count(*) AS n FROM nic WHERE interface = 'lo'")[0]["n"] == 2
        kinds = {row["kind"] for row in store.rows("SELECT DISTINCT kind FROM event")}
        assert {"phase", "gc"} <= kinds
        (stack,) = store.rows("SELECT frames FROM stack WHERE thread = 'MainThread' AND rank = 0")
        assert len(stack["frames"]) > 3


def test_the_clients_view_of_requests(tmp_path, chat_server):
    run = create_run(engine="test", model="none", root=tmp_path)
    with Recorder.open(run, "traffic-1", ship=False) as recorder:
        plan = TrafficPlan(concurrency=2, requests=10, image_share=0.5, phase="before")
        result = asyncio.run(run_traffic(plan, chat_server.url, recorder))
    with open_run(run) as store:
        found = {row["trace_id"]: row for row in store.rows("SELECT * FROM client_request")}
        (client,) = store.rows("SELECT role FROM resource")
    assert client["role"] == "client"
    assert len(found) == 10
    for record in result.records:
        row = found[record.trace_id]
        assert (row["ts"], row["dur"], row["status"], row["ttft"]) == (record.start, record.e2e, "ok", record.ttft)
        assert (row["kind"], row["phase"], row["tpot"]) == (record.kind, "before", round(record.tpot))
