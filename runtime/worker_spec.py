"""What a rank must know to start, in one file of the run folder."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from runtime.serve_config import ServeConfig
from traces.errors import UsageError
from traces.folder import write_atomic

SPEC = "WORKBENCH_WORKER_SPEC"  # environment variable with the file's path


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`api` is host:port of the API process, `token` what it wants to hear first."""

    run: str  # path of the run folder
    api: str
    token: str
    config: ServeConfig

    def write(self, path: Path) -> None:
        """Readable by the owner only: it holds the token."""
        write_atomic(path, msgspec.json.format(msgspec.json.encode(self), indent=1), mode=0o600)

    @classmethod
    def from_environment(cls) -> WorkerSpec:
        path = os.environ.get(SPEC)
        if not path:
            raise UsageError(f"{SPEC} is not set", "ranks are started by `workbench serve`")
        return msgspec.json.decode(Path(path).read_bytes(), type=cls)
