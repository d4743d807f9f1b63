import mmap
import time

import psutil

from probes.memory import DeviceMemory, MemorySampler, resident
from probes.procfile import read_text
from traces import schema


def test_agrees_with_psutil_and_tells_anonymous_from_file_pages(tmp_path):
    before = resident(read_text("/proc/self/status"))
    total = before.anon + before.file + before.shmem
    assert abs(total - psutil.Process().memory_info().rss) < 32 << 20

    path = tmp_path / "weights"
    path.write_bytes(b"\1" * (48 << 20))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        touched = sum(mapped[offset] for offset in range(0, len(mapped), mmap.PAGESIZE))
        held = bytearray(b"\1" * (96 << 20))
        after = resident(read_text("/proc/self/status"))
    assert touched and held
    assert after.anon - before.anon > 80 << 20
    assert after.file - before.file > 40 << 20
    assert after.hwm >= after.anon + after.file


def test_a_kernel_thread_or_missing_process_is_none():
    assert resident(read_text("/proc/2/status")) is None
    assert resident(None) is None


def test_every_phase_has_a_sample_at_both_ends(rows):
    sampler = MemorySampler(rows, rank=3, interval=60, device=lambda: DeviceMemory(allocated=5, free=7))
    with sampler:
        sampler.phase("load")
        sampler.phase("serve")
    samples = rows.of(schema.MEMORY)
    phases = [sample["phase"] for sample in samples]
    assert phases.count("load") >= 2
    assert phases[0] == "start" and phases[-1] == "serve"
    assert {sample["rank"] for sample in samples} == {3}
    assert (samples[0]["device_allocated"], samples[0]["device_reserved"], samples[0]["device_free"]) == (5, None, 7)
    events = [(event["attrs"]["phase"], event["attrs"]["next"]) for event in rows.of(schema.EVENT)]
    assert events == [("start", "load"), ("load", "serve")]
    assert all(event["dur"] >= 0 and event["ts"] + event["dur"] <= time.time_ns() for event in rows.of(schema.EVENT))
