"""Which reads suit which file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime.load_mode import BY_MODE, LOCAL, file_system, is_network, settings_for


def mounts(path: Path, kind: str) -> str:
    """Lines as in proc_pid_mountinfo(5): the wanted device among others, with and without optional fields."""
    device = os.stat(path).st_dev
    mine = f"{os.major(device)}:{os.minor(device)}"
    return f"21 1 0:4095 / /proc rw - proc proc rw\n36 35 {mine} /mnt1 /mnt2 rw,noatime master:1 shared:7 - {kind} server:/x rw\n"


@pytest.mark.parametrize(
    ("kind", "network"),
    [("nfs4", True), ("lustre", True), ("fuse.s3fs", True), ("fuse", True), ("ext4", False), ("xfs", False), ("fuseblk", False)],
)
def test_network_file_systems_are_known_by_their_type(tmp_path: Path, kind: str, network: bool) -> None:
    found = file_system(tmp_path, mounts(tmp_path, kind))
    assert (found, is_network(found)) == (kind, network)


def test_a_device_that_is_not_listed_is_taken_as_local(tmp_path: Path) -> None:
    assert file_system(tmp_path, "") is None and not is_network(None)


def test_a_mode_that_was_asked_for_overrules_the_file_system(tmp_path: Path) -> None:
    assert settings_for("network", tmp_path) is BY_MODE["network"]
    assert settings_for("buffered", tmp_path).direct_from is None
    assert settings_for("direct", tmp_path).direct_from == 0
    assert BY_MODE["network"].threads < LOCAL.threads and BY_MODE["network"].retries > LOCAL.retries
