"""What this machine is: kernel, CPU, NUMA, memory, limits, network interfaces. Missing facts are None."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from pathlib import Path
from typing import Any

from probes import cgroup
from probes.host import usable_cpus
from probes.procfile import fields, kib, read_int, read_text

CPU_FLAGS = ("avx", "avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "bf16", "sve", "asimd", "hypervisor")
SETTINGS = (
    "vm/overcommit_memory",
    "vm/swappiness",
    "vm/max_map_count",
    "kernel/numa_balancing",
    "kernel/shmmax",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/core/somaxconn",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/ip_local_port_range",
)
LIMITS = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "as": resource.RLIMIT_AS}


def system() -> dict[str, Any]:
    release = fields(read_text("/etc/os-release"), "=")
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "distribution": release.get("PRETTY_NAME", "").strip('"') or None,
        "libc": " ".join(platform.libc_ver()) or None,
        "container": container(),
        "settings": {name.replace("/", "_"): _stripped(read_text(f"/proc/sys/{name}")) for name in SETTINGS},
        "transparent_hugepage": _selected(read_text("/sys/kernel/mm/transparent_hugepage/enabled")),
    }


def container() -> str | None:
    """Kind of container by the marks that runtimes leave, or None."""
    for mark, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if Path(mark).exists():
            return kind
    return "kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else None


def cpu() -> dict[str, Any]:
    info = fields((read_text("/proc/cpuinfo") or "").split("\n\n")[0], ":")
    flags = set(info.get("flags", info.get("Features", "")).split())
    quota = cgroup.cpu_quota(cgroup.find("cpu"))
    return {
        "model": info.get("model name") or platform.processor() or None,
        "architecture": platform.machine(),
        "logical": os.cpu_count(),
        "usable": usable_cpus(quota),
        "quota": quota,
        "governor": _stripped(read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
    }


def numa() -> dict[str, str | None]:
    """Node -> its CPUs as a list like 0-31."""
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"), key=lambda node: int(node.name[4:]))
    return {node.name: _stripped(read_text(node / "cpulist")) for node in nodes}


def memory() -> dict[str, int | None]:
    """Bytes; `limit` is the control group's."""
    info = fields(read_text("/proc/meminfo"))
    return {
        "total": kib(info.get("MemTotal")),
        "available": kib(info.get("MemAvailable")),
        "swap": kib(info.get("SwapTotal")),
        "limit": cgroup.memory(cgroup.find("memory")).limit,
    }


def shared_memory(path: str = "/dev/shm") -> dict[str, int | None]:
    """Size and free bytes of the shared-memory file system, which data loaders and NCCL between local ranks use."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return {"size": None, "free": None}
    return {"size": usage.total, "free": usage.free}


def limits() -> dict[str, int | None]:
    """Soft resource limits; None is unlimited."""
    found = {name: resource.getrlimit(number)[0] for name, number in LIMITS.items()}
    return {name: None if value == resource.RLIM_INFINITY else value for name, value in found.items()}


def network() -> dict[str, dict[str, Any]]:
    """Interface -> mtu, Mbit/s where the driver tells (virtual ones do not), state; InfiniBand ports as `mlx5_0:1` with rate and state."""
    found: dict[str, dict[str, Any]] = {}
    for folder in sorted(Path("/sys/class/net").glob("*")):
        speed = read_int(folder / "speed")
        state = _stripped(read_text(folder / "operstate"))
        found[folder.name] = {"mtu": read_int(folder / "mtu"), "mbit": speed if speed and speed > 0 else None, "state": state}
    for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*")):
        name = f"{port.parent.parent.name}:{port.name}"
        found[name] = {key: _stripped(read_text(port / key)) for key in ("rate", "state", "link_layer")}
    return found


def _stripped(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())


def _selected(text: str | None) -> str | None:
    """`always [madvise] never` -> madvise."""
    return text.split("[")[1].split("]")[0] if text and "[" in text else None
