"""What logs of starts say: lines that torch 2.13, torchrun, gloo, NCCL and the kernel really wrote (addresses and files shortened)."""

from __future__ import annotations

import pytest

from probes.foreign import importing
from probes.foreign.start_log import claims, signs
from traces import schema
from traces.errors import UsageError

TORCHRUN_BUS = """\
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -7 (pid: 10342)  (SIGBUS)
"""
FATAL = [
    ("shm", "RuntimeError: unable to allocate shared memory(shm) for file </torch_9934_28_0>: No space left on device (28)", {}),
    ("shm", "[2] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device", {}),
    ("shm", "include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-1-2 (size 9637888)", {"size": 9637888}),
    ("shm", "shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-WU to 9637892 bytes, error: No space left on device (28)",
     {"size": 9637892}),
    ("shm", "OSError: [Errno 28] No space left on device: '/psm_1b2c3d4e'", {}),
    ("bus-error", TORCHRUN_BUS, {"rank": 1}),
    ("bus-error", "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's workers are "
     "out of shared memory. Please try to raise your shared memory limit.", {}),
    ("bus-error", "start.sh: line 3: 10121 Bus error               python share.py", {}),
    ("joined", "torch.distributed.DistStoreError: Timed out after 7 seconds waiting for clients. 2/3 clients joined.",
     {"ranks": 2, "world": 3}),
    ("joined", "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 "
     "(world_size=4, worker_count=2, timeout=0:30:00)", {"ranks": 2, "world": 4, "rank": 0}),
    ("connect", "[rank1]: torch.distributed.DistNetworkError: The client socket has timed out after 6000ms while trying to connect to "
     "(10.0.0.1, 29712).", {"address": "10.0.0.1:29712", "rank": 1}),
    ("port-taken", "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29711, "
     "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", {"address": "29711"}),
    ("absent", "torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/2", {"ranks": 2}),
    ("outside", "RuntimeError: [enforce fail at gloo/context.cc:23] rank < size. 2 vs 2", {"ranks": 2, "world": 2}),
    ("rendezvous", "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", {}),
    ("connect", "error: the head node at 10.0.0.1:29476 does not answer: Connection refused", {"why": "Connection refused"}),
]  # fmt: skip
NO_FAILURE = [
    "OSError: [Errno 28] No space left on device: '/data/checkpoint.tmp'",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 262144, Hardware limit: 232448",
    "NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl- (size 192814336), error: No such file or directory (2)",
    "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a (size 9637888), error: Permission denied (13)",
    "[W1130 15:49:25.673629945 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 127.0.0.1:29712 - retrying (try=0, "
    "timeout=6000ms, delay=3458ms): The client socket has timed out after 6000ms while trying to connect to (127.0.0.1, 29712).",
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 111 - Connection refused).",
    "[W1130 15:50:09.878282823 socket.cpp:764] [c10d] The IPv6 network addresses of (head, 29711) cannot be retrieved (gai error: -2 - "
    "Name or service not known).",
    "INFO: Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 (world_size=2, "
    "worker_count=1, timeout=0:30:00)",
    "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "numbers"), FATAL)
def test_a_line_of_a_failure_is_read_with_its_numbers(kind, text, numbers):
    (one,) = signs(text.splitlines(), "a.log")
    assert (one.kind, one.fatal) == (kind, True)
    assert {name: getattr(one, name) for name in numbers} == numbers


@pytest.mark.parametrize("text", NO_FAILURE)
def test_other_disks_other_memory_and_attempts_that_are_repeated_are_no_failure(text):
    assert not any(one.fatal for one in signs([text], "a.log"))


def test_a_line_that_is_repeated_is_kept_once():
    assert len(list(signs([FATAL[0][1]] * 1000, "a.log"))) == 1


def test_logs_are_claimed_by_their_text_and_imported_beside_a_librarys(tmp_path):
    start, library, other = (tmp_path / name for name in ("rank0.log", "nccl.log", "notes.txt"))
    start.write_text(f"some line\n{FATAL[8][1]}\n")
    library.write_text(f"host:168:168 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nhost:168:168 [0] {FATAL[3][1]}\n")
    other.write_text("nothing of the kind\n")
    assert claims(start, start.read_bytes()) and not claims(other, other.read_bytes())
    rows, files = importing.read([start, library])
    assert {file.path.name: file.kind for file in files} == {"rank0.log": "start-log", "nccl.log": "collective-log"}
    assert len(rows[schema.EVENT]) == 2 and len(rows[schema.LIBRARY_FACT]) == 1
    with pytest.raises(UsageError, match="no form"):
        importing.read([other])
