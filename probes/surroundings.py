"""Checks of what surrounds this installation: memory, CPUs, disk, network, rights, terminal."""

from __future__ import annotations

import locale
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from probes import device, machine, ptrace
from probes.doctor import Check
from probes.packages import version
from probes.procfile import read_text

NEEDED_MEMORY = 2 << 30  # bytes: four ranks of the shipped model with torch take about 1.6 GiB
NEEDED_DISK = 1 << 30  # bytes: an hour of a 4-rank run at default detail stays below this
NEEDED_SHM = 64 << 20  # bytes: docker's default, and what local transports of a few ranks ask for at most
NEEDED_FILES = 1024
OTLP = {4317: "OTLP/gRPC", 4318: "OTLP/HTTP"}
NETWORK_FILE_SYSTEMS = frozenset(("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "fuse.sshfs", "9p", "beegfs", "afs"))


def devices() -> Check:
    found = device.inventory()
    if gpus := found.get("gpus"):
        names = sorted({gpu["name"] for gpu in gpus.values()})
        return Check("devices", "ok", f"{len(gpus)} x {', '.join(names)}, driver {found['nvidia_driver'] or 'unknown'}")
    nodes = {vendor: count for vendor, count in found["nodes"].items() if count}
    if nodes:
        listed = ", ".join(f"{count} {vendor}" for vendor, count in nodes.items())
        return Check(
            "devices", "warn", f"device nodes: {listed}; gauges are not read: {found['unread']}", "pip install nvidia-ml-py for NVIDIA"
        )
    return Check("devices", "ok", "no accelerator: everything runs on the CPU")


def runs_folder(folder: Path) -> Check:
    """Can be written, is on a local disk, has room."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(
            "runs folder", "fail", f"{folder}: {error.strerror}", "give write permission, or set WORKBENCH_RUNS to a folder of yours"
        )
    kind = file_system(folder)
    observed = f"{folder}, {kind or 'unknown file system'}, {free / 2**30:.1f} GiB free"
    if kind in NETWORK_FILE_SYSTEMS:
        return Check("runs folder", "warn", observed, "DuckDB and memory-mapped rings want a local disk: set WORKBENCH_RUNS")
    if free < NEEDED_DISK:
        return Check("runs folder", "warn", observed, "make space, or set WORKBENCH_RUNS to another disk")
    return Check("runs folder", "ok", observed)


def file_system(path: Path) -> str | None:
    """Type of the file system that holds a path: that of the longest mount point above it, the later of equal ones."""
    best, kind = "", None
    resolved = f"{path.resolve()}/"
    for line in (read_text("/proc/self/mounts") or "").splitlines():
        _, point, found, *_ = line.split(" ")
        point = point.replace("\\040", " ").rstrip("/") + "/"
        if resolved.startswith(point) and len(point) >= len(best):
            best, kind = point, found
    return kind


def memory() -> Check:
    found = machine.memory()
    available, limit = found["available"], found["limit"]
    if available is None:
        return Check("memory", "unknown", "no /proc/meminfo")
    usable = available if limit is None else min(available, limit)
    observed = f"{available / 2**30:.1f} GiB available, " + (
        "no control-group limit" if limit is None else f"limit {limit / 2**30:.1f} GiB"
    )
    if usable < NEEDED_MEMORY:
        return Check("memory", "warn", observed, "four ranks want 2 GiB: stop something, or serve with fewer ranks")
    return Check("memory", "ok", observed)


def cpus() -> Check:
    found = machine.cpu()
    quota = "no quota" if found["quota"] is None else f"quota {found['quota']:.1f} CPUs"
    observed = f"{found['usable']} of {found['logical']} CPUs usable, {quota}"
    if found["usable"] < 2:
        return Check("cpus", "warn", observed, "ranks will share one CPU: latencies say little; raise the quota or the affinity")
    return Check("cpus", "ok", observed)


def shared_memory() -> Check:
    found = machine.shared_memory()
    size, free = found["size"], found["free"]
    if size is None or free is None:
        return Check("/dev/shm", "unknown", "there is no /dev/shm", "mount a tmpfs there")
    observed = f"{size / 2**20:.0f} MiB, {free / 2**20:.0f} MiB free"
    if free < NEEDED_SHM:
        remedy = "docker run --shm-size=1g; Kubernetes: an emptyDir with medium Memory at /dev/shm"
        return Check("/dev/shm", "warn", observed, remedy)
    return Check("/dev/shm", "ok", observed)


def open_files() -> Check:
    soft = machine.limits()["nofile"]
    if soft is not None and soft < NEEDED_FILES:
        return Check("open files", "warn", f"limit {soft}", f"ulimit -n {NEEDED_FILES}")
    return Check("open files", "ok", f"limit {soft or 'none'}")


def loopback() -> Check:
    """Listens on 127.0.0.1 and connects to itself, as ranks, collector and server do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()[:2], timeout=5) as ours:
            theirs, _ = server.accept()
            with theirs:
                ours.sendall(b"x")
                heard = theirs.recv(1)
    except OSError as error:
        return Check(
            "loopback", "fail", f"127.0.0.1 does not answer: {error}", "look at the network namespace and the firewall of this machine"
        )
    return Check("loopback", "ok" if heard == b"x" else "fail", "TCP on 127.0.0.1 works")


def otlp_ports() -> Check:
    """The standard ports are free for a collector that should take other engines' telemetry."""
    taken = [port for port in OTLP if not _free(port)]
    if taken:
        listed = ", ".join(f"{port} ({OTLP[port]})" for port in taken)
        return Check(
            "otlp ports", "warn", f"taken: {listed}", "another OpenTelemetry collector runs here: send it on, or give ours other ports"
        )
    return Check("otlp ports", "ok", "4317 and 4318 are free")


def stacks() -> Check:
    """py-spy is there and the kernel lets it look at processes that are not our children."""
    if version("py-spy") is None:
        return Check("stacks", "warn", "py-spy is not installed", "pip install py-spy")
    rights = ptrace.rights()
    if rights.unrelated:
        return Check("stacks", "ok", rights.describe())
    return Check("stacks", "warn", f"only our own children can be sampled: {rights.describe()}", rights.remedy())


def terminal() -> Check:
    name, colours = os.environ.get("TERM", ""), os.environ.get("COLORTERM", "")
    encoding = locale.getpreferredencoding(False)
    depth = "24-bit colour" if colours in ("truecolor", "24bit") else "256 colours" if "256" in name else "few colours"
    observed = f"TERM={name or 'unset'}, {depth}, {encoding}{'' if sys.stdout.isatty() else ', output is not a terminal'}"
    if encoding.lower().replace("-", "") != "utf8":
        return Check("terminal", "warn", observed, "export LC_ALL=C.UTF-8")
    if name in ("", "dumb"):
        return Check("terminal", "warn", observed, "the terminal UI needs a real terminal: export TERM=xterm-256color")
    return Check("terminal", "ok", observed)


def _free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
