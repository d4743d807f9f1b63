"""Where a run's collector listens, and the token that opens it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec


class CollectorAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The content of collector.json."""

    host: str
    port: int
    pid: int
    token_file: str
    machine: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def token(self) -> str:
        """Bearer token; empty when the file cannot be read, so that the collector's refusal is what a person sees."""
        try:
            return Path(self.token_file).read_text().strip()
        except OSError:
            return ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @classmethod
    def read(cls, file: Path) -> CollectorAddress | None:
        """None when there is no file, or when it was left behind by a process of this machine that is gone."""
        try:
            address = msgspec.json.decode(file.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError):
            return None
        return None if address.machine == socket.gethostname() and not process_alive(address.pid) else address


def process_alive(pid: int) -> bool:
    """Whether a process of this machine runs (a zombie does not)."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except PermissionError:
        return True
    except OSError:
        return False
