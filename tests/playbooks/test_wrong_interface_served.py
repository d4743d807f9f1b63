"""A server on two hosts whose ranks exchange over the slow of two interfaces: found, restarted as the remedy says, and faster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import pytest

from playbooks.drills import hosts
from playbooks.drills.hosts import Hosts
from playbooks.runner import diagnose
from probes.fabric.launch import FabricTest, run_across
from probes.fabric.record import record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(hosts.unavailable()), reason=f"no fault lab here: {hosts.unavailable()}"),
    pytest.mark.timeout(600),
]
MEGABITS = 10.0
PORT = 8471


def workbench(*argv):
    return [sys.executable, "-m", "workbench", *argv]


@contextmanager
def served(lab, root, interface):
    """Two nodes of one server."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": interface, "WORKBENCH_RUNS": str(root), "WORKBENCH_JOIN_TOKEN": "0" * 32}
    argv = workbench("serve", "shapes", "--ep", "2", "--nodes", "2", "--head", lab.address(0), "--port", str(PORT), "--detail-every", "1")
    nodes = []
    try:
        for node in range(2):
            log = (root / f"{interface}-{node}.log").open("w")
            command = lab.command(
                node, ["unshare", "--uts", "sh", "-c", f'hostname node{node} && exec "$@"', "sh", *argv, "--node-rank", str(node)]
            )
            nodes.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        deadline = time.monotonic() + 240
        ask = ["python3", "-c", f"import urllib.request as u; u.urlopen('http://127.0.0.1:{PORT}/health', timeout=5)"]
        while subprocess.run(lab.command(0, ask), capture_output=True).returncode:
            assert time.monotonic() < deadline and all(node.poll() is None for node in nodes), (root / f"{interface}-0.log").read_text()[
                -2000:
            ]
            time.sleep(1)
        yield
    finally:
        for node in nodes:
            node.send_signal(signal.SIGINT)
        for node in nodes:
            try:
                node.wait(timeout=60)
            except subprocess.TimeoutExpired:
                node.kill()


def seconds_for_traffic(lab, root):
    argv = workbench("traffic", f"http://127.0.0.1:{PORT}", "--requests", "24", "--mix", "prefill-heavy", "--max-tokens", "2", "--json")
    said = subprocess.run(
        lab.command(0, argv), env={**os.environ, "WORKBENCH_RUNS": str(root)}, capture_output=True, text=True, timeout=400
    )
    assert said.returncode == 0, said.stderr[-2000:]
    answer = json.loads(said.stdout)
    return answer["summary"]["ok"], answer["summary"]["duration"] / 1e9


def test_the_remedy_of_the_finding_makes_the_server_faster(tmp_path):
    with Hosts(2, second=True) as lab:
        lab.shape_second(MEGABITS)
        with served(lab, tmp_path, "mgmt0"):
            before = seconds_for_traffic(lab, tmp_path)
        found = run_across(
            FabricTest(1, largest=2 << 20, timeout=120, budget=0.2), lab.address(0), [partial(lab.command, host) for host in range(2)],
            {"GLOO_SOCKET_IFNAME": "mgmt0"},
        )  # fmt: skip
        diagnosis = diagnose(record(found, tmp_path), "cross-node-throughput")
        first = diagnosis.findings[0]
        assert first.id == "net.wrong-interface" and first.subject.labels["better"] == ["eth0"]
        # What is said of the slow interface is what it was shaped to: within 15 %.
        carried = [one.bandwidth for one in found.carried if one.used]
        assert all(rate == pytest.approx(MEGABITS * 1e6 / 8, rel=0.15) for rate in carried)
        with served(lab, tmp_path, first.remedy[0].config["GLOO_SOCKET_IFNAME"]):
            after = seconds_for_traffic(lab, tmp_path)
    print(f"seconds for the traffic over mgmt0 {before[1]:.1f}, over eth0 {after[1]:.1f}")
    assert before[0] == after[0] == 24
    assert after[1] < before[1]
