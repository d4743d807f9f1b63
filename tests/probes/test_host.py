import os
import subprocess
import sys
import time

import psutil
import pytest

from probes import host
from traces import schema


def test_pressure_is_a_share_of_one():
    text = "some avg10=11.97 avg60=4.13 avg300=1.07 total=7088300\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=0\n"
    assert host.pressure(text) == pytest.approx(0.1197)
    assert host.pressure(None) is None


def test_steal_is_the_share_since_the_sample_before():
    first = host.cpu_ticks("cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    second = host.cpu_ticks("cpu  150 0 110 820 0 0 0 20 90 0\n")
    assert host.steal_share(first, second) == pytest.approx(20 / 100)
    assert host.steal_share(None, second) is None
    assert host.steal_share(second, second) is None
    assert host.cpu_ticks(None) is None


def test_run_queue_delay():
    assert host.run_queue_delay("1204 83005 7\n") == 83005
    assert host.run_queue_delay("0 0 0\n") is None
    assert host.run_queue_delay(None) is None


def test_cpu_time_of_a_name_with_brackets_and_spaces():
    text = f"42 (a b) c) S {' '.join(['0'] * 10)} 3 4 0 0"
    assert host.process_cpu_time(text) == 7 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def test_quota_rounds_up_and_never_exceeds_the_affinity():
    allowed = len(os.sched_getaffinity(0))
    assert host.usable_cpus(None) == allowed
    assert host.usable_cpus(0.5) == 1
    assert host.usable_cpus(1000) == allowed


def test_a_sample_of_this_process_agrees_with_psutil(rows):
    sampler = host.HostSampler(rows, rank=1)
    sampler.sample()
    spent = time.process_time_ns()
    while time.process_time_ns() < spent + 30_000_000:
        pass
    sampler.sample()
    first, second = rows.of(schema.HOST)
    assert second["rank"] == 1 and second["cpus"] >= 1
    assert second["cpu_time"] - first["cpu_time"] >= 30_000_000
    times = psutil.Process().cpu_times()
    assert abs(second["cpu_time"] / 1e9 - (times.user + times.system)) < 1
    assert abs(second["available"] - psutil.virtual_memory().available) < 1 << 30
    assert first["steal"] is None


def test_a_sample_of_another_process(rows):
    code = "import sys\nfor _ in range(3_000_000): pass\nprint('done', flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        host.HostSampler(rows, pid=child.pid).sample()
        times = psutil.Process(child.pid).cpu_times()
        child.stdin.close()
    (sample,) = rows.of(schema.HOST)
    assert sample["cpu_time"] / 1e9 == pytest.approx(times.user + times.system, abs=0.02)
    assert sample["involuntary"] is not None
    host.HostSampler(rows, pid=child.pid).sample()
    assert rows.of(schema.HOST)[1]["cpu_time"] is None
    assert rows.of(schema.HOST)[1]["involuntary"] is None
