"""Whether this process may read another one's stack, and what to change where it may not (ptrace(2), Yama's kernel document)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from probes.procfile import fields, read_int, read_text

CAP_SYS_PTRACE = 19  # linux/capability.h
SCOPES = {0: "any process of the same user", 1: "descendants only", 2: "only with CAP_SYS_PTRACE", 3: "nobody"}


@dataclass(frozen=True, slots=True)
class PtraceRights:
    """`scope` is kernel.yama.ptrace_scope (None: the kernel has no Yama, which allows what 0 allows)."""

    scope: int | None
    capable: bool
    root: bool

    @property
    def unrelated(self) -> bool:
        """May attach to processes of the same user that are not its descendants."""
        return self.scope != 3 and (self.capable or self.scope in (None, 0))

    def describe(self) -> str:
        scope = "kernel.yama.ptrace_scope is absent" if self.scope is None else f"kernel.yama.ptrace_scope = {self.scope}"
        meaning = "" if self.scope is None else f" ({SCOPES.get(self.scope, 'unknown')})"
        return (
            f"{scope}{meaning}, CAP_SYS_PTRACE {'held' if self.capable else 'not held'}, {'root' if self.root else f'uid {os.geteuid()}'}"
        )

    def remedy(self) -> str:
        """What to do, for a host and for the usual containers."""
        if self.scope == 3:
            return "ptrace_scope 3 forbids it until the next boot: set kernel.yama.ptrace_scope=1 in /etc/sysctl.d and reboot"
        host = "run as the same user as the process or as root"
        if self.scope in (1, 2):
            host += ", or `sysctl kernel.yama.ptrace_scope=0`"
        return (
            f"{host}; in a container give CAP_SYS_PTRACE: `docker run --cap-add SYS_PTRACE`, "
            'Kubernetes `securityContext: {capabilities: {add: ["SYS_PTRACE"]}}`'
        )


def rights() -> PtraceRights:
    """The rights of this process now."""
    effective = int(fields(read_text("/proc/self/status")).get("CapEff", "0"), 16)
    scope = read_int("/proc/sys/kernel/yama/ptrace_scope")
    return PtraceRights(scope, bool(effective >> CAP_SYS_PTRACE & 1), os.geteuid() == 0)


def same_user(pid: int) -> bool:
    """Whether this process runs as the owner of the other one; a process that is gone counts as one's own."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except FileNotFoundError:
        return True
