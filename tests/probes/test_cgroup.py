"""Folders laid out as the kernel lays them out; file names and meanings from the kernel's cgroup-v1/memory and cgroup-v2 documents."""

from pathlib import Path

import pytest

from probes import cgroup

LIMITLESS = "9223372036854771712\n"  # what a v1 kernel with 4 KiB pages writes for "no limit"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def proc(tmp_path):
    """A /proc with the two files that say where a process's groups are."""

    def make(groups: str, mountinfo: str) -> Path:
        write(tmp_path / "proc/self", cgroup=groups, mountinfo=mountinfo)
        return tmp_path / "proc"

    return make


def test_v1_takes_subtree_numbers_and_the_smallest_limit_of_the_ancestors(tmp_path, proc):
    top = tmp_path / "memory"
    found_in = proc("4:memory:/job/rank\n0::/\n", f"35 31 0:32 / {top} rw - cgroup cgroup rw,memory\n")
    write(top, memory__limit_in_bytes=LIMITLESS)
    write(top / "job", memory__limit_in_bytes="1000000\n")
    stat = "cache 5\nrss 7\nhierarchical_memory_limit 1000000\ntotal_cache 50\ntotal_rss 70\n"
    write(top / "job/rank", memory__limit_in_bytes=LIMITLESS, memory__stat=stat)
    group = cgroup.find("memory", proc=found_in)
    assert (group.version, group.path) == (1, top / "job/rank")
    assert cgroup.memory(group) == cgroup.CgroupMemory(anon=70, file=50, limit=1000000)


def test_v2_no_limit_is_none(tmp_path, proc):
    top = tmp_path / "unified"
    found_in = proc("0::/job\n", f"38 31 0:38 / {top} rw - cgroup2 cgroup2 rw\n")
    write(top, cgroup__controllers="memory cpu\n")
    write(top / "job", cgroup__controllers="cpu memory\n", memory__stat="anon 11\nfile 22\n", memory__max="max\n")
    group = cgroup.find("memory", proc=found_in)
    assert group.version == 2
    assert cgroup.memory(group) == cgroup.CgroupMemory(anon=11, file=22, limit=None)
    write(top / "job", memory__max="4096\n")
    assert cgroup.memory(group).limit == 4096


def test_inside_a_container_the_mount_shows_only_our_group(tmp_path, proc):
    top = tmp_path / "memory"
    found_in = proc("4:memory:/docker/abc\n", f"35 31 0:32 /docker/abc {top} rw - cgroup cgroup rw,memory\n")
    write(top, memory__limit_in_bytes="77\n", memory__stat="total_rss 1\ntotal_cache 2\n")
    group = cgroup.find("memory", proc=found_in)
    assert group.path == top
    assert cgroup.memory(group).limit == 77


def test_a_unified_mount_without_the_controller_is_not_it(tmp_path, proc):
    top = tmp_path / "unified"
    found_in = proc("0::/\n", f"38 31 0:38 / {top} rw - cgroup2 cgroup2 rw\n")
    write(top, cgroup__controllers="hugetlb\n")
    assert cgroup.find("memory", proc=found_in) is None
    assert cgroup.memory(None) == cgroup.CgroupMemory(None, None, None)
    assert cgroup.cpu_quota(None) is None


def test_cpu_quota_of_both_versions(tmp_path):
    v1 = tmp_path / "v1"
    write(v1, cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    write(v1 / "a", cpu__cfs_quota_us="250000\n", cpu__cfs_period_us="100000\n")
    assert cgroup.cpu_quota(cgroup.Cgroup(1, v1 / "a", v1)) == 2.5
    assert cgroup.cpu_quota(cgroup.Cgroup(1, v1, v1)) is None
    v2 = tmp_path / "v2"
    write(v2, cgroup__procs="")
    write(v2 / "a", cpu__max="150000 100000\n")
    write(v2 / "a/b", cpu__max="max 100000\n")
    assert cgroup.cpu_quota(cgroup.Cgroup(2, v2 / "a/b", v2)) == 1.5


def test_throttled_is_in_nanoseconds_for_both_versions():
    assert cgroup.throttled("nr_periods 9\nnr_throttled 4\nthrottled_time 1234567\n") == 1234567
    assert cgroup.throttled("usage_usec 5\nnr_throttled 4\nthrottled_usec 1234\n") == 1234000
    assert cgroup.throttled("usage_usec 5\n") is None
    assert cgroup.throttled(None) is None
