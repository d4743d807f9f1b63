"""The environment of one process as a nested dictionary, and what differs between two of them.

"It was fine yesterday" is answered here first: kernel, packages, CPU, memory limits, environment variables, devices, model files.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from probes import device, environ, machine, packages
from probes.procfile import read_text

SCHEMA = "workbench.fingerprint.v1"

# Facts that differ between two healthy runs or two ranks of one run. Shell patterns of flat keys.
VOLATILE = (
    "taken",
    "host.*",
    "memory.available",
    "shm.free",
    "env.RANK",
    "env.LOCAL_RANK",
    "env.GROUP_RANK",
    "env.NODE_RANK",
    "env.ROLE_*",
    "env.MASTER_PORT",
    "env.TORCHELASTIC_*",
    "env.PYTHONHASHSEED",
    "env.SLURM_*",
    "env.WORKBENCH_*",
    "env.CUDA_VISIBLE_DEVICES",
    "devices.gpus.*.uuid",
    "network.veth*",
    "torch.rank_device",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A flat key such as `packages.torch` and its two values; None where one side does not have it."""

    key: str
    a: Any
    b: Any


def fingerprint(torch_info: bool = False, model: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """All facts about this process's surroundings, in JSON types. `torch_info` imports torch (seconds); `model` hashes its small files."""
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "taken": time.time_ns(),
        "host": {"name": socket.gethostname(), "pid": os.getpid(), "load1": os.getloadavg()[0], "boot_id": _boot_id()},
        "os": machine.system(),
        "python": {"version": platform.python_version(), "implementation": sys.implementation.name, "prefix": sys.prefix},
        "packages": packages.versions(),
        "cpu": machine.cpu(),
        "numa": machine.numa(),
        "memory": machine.memory(),
        "shm": machine.shared_memory(),
        "limits": machine.limits(),
        "network": machine.network(),
        "devices": device.inventory(),
        "env": environ.of_interest(),
    }
    if torch_info:
        from probes.torch_info import torch_facts

        found["torch"] = torch_facts()
    if model is not None:
        found["model"] = model_revision(Path(model))
    return found


def model_revision(folder: Path) -> dict[str, str]:
    """File -> SHA-256 (16 digits): of JSON and template files whole, of a safetensors file its length and header, never its weights."""
    found = {}
    for path in sorted(folder.glob("*")):
        if path.suffix in (".json", ".jinja", ".model", ".txt"):
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        elif path.suffix == ".safetensors":
            with path.open("rb") as file:
                length = file.read(8)
                header = file.read(min(int.from_bytes(length, "little"), 100 << 20))  # the format's own cap on a header
            found[path.name] = hashlib.sha256(length + header + str(path.stat().st_size).encode()).hexdigest()[:16]
    return found


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves as (`cpu.model`, value); lists are leaves."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def is_volatile(key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in VOLATILE)


def diff(a: Mapping[str, Any], b: Mapping[str, Any], volatile: bool = False) -> list[Difference]:
    """What differs, sorted by key; facts that differ between healthy runs are left out unless `volatile`."""
    left, right = dict(flat(a)), dict(flat(b))
    keys = sorted(key for key in left.keys() | right.keys() if volatile or not is_volatile(key))
    return [Difference(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def _boot_id() -> str | None:
    text = read_text("/proc/sys/kernel/random/boot_id")
    return text.strip() if text else None
