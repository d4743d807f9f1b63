"""A /dev/shm of a chosen size for one process and its children: a tmpfs in a mount namespace of their own, and gone with them."""

from __future__ import annotations

import shutil
import subprocess

MOUNT = 'mount -t tmpfs -o "size=$0" tmpfs /dev/shm && exec "$@"'


def command(nbytes: int) -> list[str]:
    """The words before an argv that give it such a /dev/shm. The process keeps its id; the machine's own mounts stay as they are."""
    return ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", MOUNT, str(nbytes)]


def unavailable() -> str:
    """Why that cannot be done here; empty when it can."""
    if shutil.which("unshare") is None:
        return "unshare is missing: apt-get install util-linux"
    tried = subprocess.run([*command(1 << 20), "true"], capture_output=True, text=True)
    if tried.returncode == 0:
        return ""
    return f"a mount namespace with a /dev/shm of its own cannot be made: {tried.stderr.strip() or 'no reason was given'}"
