"""A child process that does not outlive its parent, whatever kills the parent."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # prctl(2)
PR_SET_NAME = 15
PARENT = "WORKBENCH_PARENT_PID"


def die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when the parent's thread that made us ends; exits at once if it is gone already.

    Where there is no prctl (not Linux) a rank still ends with its connection to the API process.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """The name that ps and top show (at most 15 characters)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)
