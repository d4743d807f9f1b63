"""The fault lab, and the fabric test in it: links that are really shaped are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from playbooks.drills import hosts
from playbooks.drills.hosts import Hosts

pytestmark = [pytest.mark.skipif(bool(hosts.unavailable()), reason=f"no fault lab here: {hosts.unavailable()}"), pytest.mark.timeout(300)]


def fabric(lab, root, *options):
    """`workbench fabric` on every host of the lab; the exit code and the answer of host 0."""
    head = f"{lab.address(0)}:29581"
    common = ["--ranks", "1", "--nodes", str(lab.count), "--head", head, "--largest", "4", "--timeout", "240", *options]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "WORKBENCH_RUNS": str(root)}
    started = [
        subprocess.Popen(
            lab.command(host, [sys.executable, "-m", "workbench", "fabric", "--json", "--node-rank", str(host), *common]),
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for host in range(lab.count)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=270) for process in started]
    finally:
        for process in started:
            process.kill()
    assert started[0].returncode in (0, 3), said[0][1]
    return started[0].returncode, json.loads(said[0][0])


def test_hosts_reach_one_another_and_are_gone_afterwards():
    with Hosts(3) as lab:
        done = subprocess.run(lab.command(2, ["ip", "-o", "-4", "address"]), capture_output=True, text=True, check=True)
        assert lab.address(2) in done.stdout
        name = lab.name(2)
        assert name in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert name not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def test_what_a_crash_left_is_removed_by_the_next_lab():
    code = "import os, signal\nfrom playbooks.drills.hosts import Hosts\nHosts(1).__enter__()\nos.kill(os.getpid(), signal.SIGKILL)"
    died = subprocess.Popen([sys.executable, "-c", code])
    died.wait()
    time.sleep(0.1)
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert f"wb{died.pid}h0" in listed
    assert f"wb{died.pid}h0" in hosts.remove_leftovers()
    assert f"wb{died.pid}" not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def test_a_host_whose_sending_is_shaped_is_found_with_its_bandwidth(tmp_path):
    """Token bucket of 200 Mbit/s: 25 MB/s, of which headers take about 5 %."""
    with Hosts(3) as lab:
        lab.shape_sending(1, 200)
        code, answer = fabric(lab, tmp_path)
    (found,) = [one for one in answer["diagnosis"]["findings"] if one["id"] == "net.degraded-link"]
    assert code == 3
    assert found["subject"]["labels"]["hosts"][0].endswith("/1") and "out of" in found["title"]
    for pair in answer["pairs"]:
        if pair["src"] == 1:
            assert pair["bandwidth"] == pytest.approx(25e6, rel=0.15)
    assert {one["status"] for one in answer["collectives"]} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize("megabits", [50, 400])
@pytest.mark.parametrize("direction", ["sending", "receiving", "both"])
def test_every_direction_at_other_strengths(tmp_path, direction, megabits):
    with Hosts(3) as lab:
        if direction != "receiving":
            lab.shape_sending(2, megabits)
        if direction != "sending":
            lab.shape_receiving(2, megabits)
        _, answer = fabric(lab, tmp_path)
    (found,) = [one for one in answer["diagnosis"]["findings"] if one["id"] == "net.degraded-link"]
    assert found["subject"]["labels"]["hosts"] == [found["subject"]["labels"]["hosts"][0]]
    assert found["subject"]["labels"]["hosts"][0].endswith("/2")
    assert {"sending": "out of", "receiving": "into", "both": "path of"}[direction] in found["title"]


@pytest.mark.slow
def test_a_healthy_lab_has_no_finding(tmp_path):
    with Hosts(3) as lab:
        code, answer = fabric(lab, tmp_path)
    assert code == 0 and not answer["diagnosis"]["findings"]
