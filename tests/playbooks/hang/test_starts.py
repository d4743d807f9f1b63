"""Starts that fail: what stands in the logs and in the ranks' environments is named, and what it may not be is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from playbooks.drills import shared_memory
from playbooks.drills.drill import Dose
from playbooks.drills.session import chosen, run_drill
from playbooks.runner import diagnose
from probes.fabric.reach import place
from probes.foreign.log_rows import run_of_logs

JOINED = "torch.distributed.DistStoreError: Timed out after 7 seconds waiting for clients. 1/2 clients joined."
CONNECT = "torch.distributed.DistNetworkError: The client socket has timed out after 6000ms while trying to connect to (head, 29711)."
NAME = "[W1130 15:50:09 socket.cpp:764] [c10d] The IPv6 network addresses of (head, 29711) cannot be retrieved (gai error: -2 - Name)."
TAKEN = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local address. port: 29711, name: EADDRINUSE"
OUTSIDE = "RuntimeError: [enforce fail at gloo/context.cc:23] rank < size. 2 vs 2"
BUS = "  exitcode  : -7 (pid: 10342)  (SIGBUS)"
NO_ROOM = "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)"
MIB = 1 << 20


def judged(root, texts, facts=None):
    files = []
    for number, text in enumerate(texts):
        files.append(root / f"rank{number}.log")
        files[-1].write_text(text + "\n")
    return diagnose(run_of_logs(files, root / "runs", facts), "hang", argv=())


def facts(shm_free=1 << 34, **ranks):
    """Fingerprints of ranks: rank0=(WORLD_SIZE, port)."""
    return {
        name: {
            "env": {"RANK": name.removeprefix("rank"), "WORLD_SIZE": str(world), "MASTER_ADDR": "head", "MASTER_PORT": str(port)},
            "shm": {"size": max(shm_free, 64 * MIB), "free": shm_free},
            "host": {"name": "node0"},
        }
        for name, (world, port) in ranks.items()
    }


@pytest.mark.parametrize(
    ("texts", "known", "cause", "ranks", "basis"),
    [
        ([JOINED, f"{NAME}\n{CONNECT}"], {}, "start.rendezvous", [], "established"),
        ([JOINED, CONNECT], {}, "start.rendezvous", [], "supported"),
        ([CONNECT], {}, "start.rendezvous", [], "hypothesis"),
        ([TAKEN, JOINED], {}, "start.rendezvous", [], "established"),
        ([OUTSIDE], {}, "start.rendezvous", [2], "established"),
        ([JOINED, CONNECT], facts(rank0=(3, 1), rank1=(3, 1), rank2=(3, 2)), "start.rendezvous", [2], "established"),
        ([JOINED], facts(rank0=(3, 1), rank1=(3, 1), rank2=(4, 1)), "start.rendezvous", [2], "established"),
        ([NO_ROOM], {}, "start.shm", [], "established"),
        ([BUS], facts(2 * MIB, rank0=(1, 1)), "start.shm", [0], "supported"),
        ([BUS], {}, "start.shm", [], "hypothesis"),
        ([NO_ROOM, JOINED], {}, "start.shm", [], "established"),
    ],
)
def test_what_the_logs_and_the_environments_say(tmp_path, texts, known, cause, ranks, basis):
    first = judged(tmp_path, texts, known).findings[0]
    assert (first.id, first.subject.labels["ranks"], first.confidence.basis) == (cause, ranks, basis)


def test_a_rank_that_dies_for_want_of_memory_explains_why_the_others_wait(tmp_path):
    found = {one.id: one for one in judged(tmp_path, [NO_ROOM, JOINED]).findings}
    assert found["start.rendezvous"].role == "cascade" and found["start.rendezvous"].caused_by == (found["start.shm"].fingerprint,)


def test_a_bus_error_beside_much_free_memory_stays_undecided(tmp_path):
    found = judged(tmp_path, [BUS], facts(1 << 34, rank0=(1, 1)))
    assert found.verdict == "inconclusive" and not found.findings
    assert "16,384 MiB" in next(check.summary for check in found.checks if check.id == "start.shm")


def test_attempts_that_were_repeated_are_no_finding(tmp_path):
    found = judged(tmp_path, [NAME], facts(rank0=(2, 1), rank1=(2, 1)))
    assert not found.findings


def test_a_place_knows_its_shared_memory():
    """Against the size that the kernel gives for the file system."""
    assert place(0, 1).shm_size == shutil.disk_usage("/dev/shm").total


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("name", "dose", "cause"), [("little-shared-memory", 1, "start.shm"), ("never-meet", 1, "start.rendezvous")])
def test_real_torch_processes_that_do_not_start(name, dose, cause):
    (drill,) = chosen("hang", [name])
    if reason := drill.unavailable():
        pytest.skip(reason)
    found = run_drill("hang", drill, Dose(dose, 1), 3, False, lambda said: None)
    assert (found.first, found.correct, found.unlabelled) == (cause, True, True), found.detail
    assert found.located in (None, True)


def test_a_small_mount_is_gone_with_its_process():
    if reason := shared_memory.unavailable():
        pytest.skip(reason)
    assert "size=1024k" not in Path("/proc/self/mounts").read_text()
