"""Refuses ranks that cannot belong together: another checkpoint, another library. Asked once, before a weight byte is read."""

from __future__ import annotations

import hashlib
import platform
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import numpy as np
import torch

from probes.fingerprint import model_revision
from runtime.batch import StepContext
from runtime.parallel import Group
from traces.errors import CheckpointError, UsageError

SIZE = 1024  # bytes of a rank's facts
_NO_STEP = StepContext(step=-1)
_WEIGHTS = (".safetensors", ".index.json")


class OtherLibrary(UsageError):
    """Ranks with different versions of what they compute with."""


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """What must be equal on all ranks; `host` need not be."""

    host: str
    config: str  # hash of config.json
    weights: str  # hash of the index and of all safetensors headers and lengths
    workbench: str
    torch: str
    python: str

    @classmethod
    def of(cls, model: str) -> Facts:
        files = model_revision(Path(model))
        weights = hashlib.sha256(repr([(n, h) for n, h in sorted(files.items()) if n.endswith(_WEIGHTS)]).encode()).hexdigest()[:16]
        python = ".".join(platform.python_version_tuple()[:2])
        return cls(socket.gethostname()[:64], files.get("config.json", ""), weights, _own_version(), str(torch.__version__), python)


def check_peers(mine: Facts, group: Group) -> None:
    """A collective. CheckpointError or OtherLibrary, the same on every rank, when one of them differs from rank 0."""
    body = msgspec.json.encode(mine)
    packed = np.zeros(SIZE, dtype=np.uint8)
    packed[: len(body)] = np.frombuffer(body, dtype=np.uint8)
    rows = group.all_gather(torch.from_numpy(packed), "facts", _NO_STEP)
    refuse_strangers([msgspec.json.decode(bytes(row.numpy()).rstrip(b"\0"), type=Facts) for row in rows])


def refuse_strangers(ranks: list[Facts]) -> None:
    """Raises for the first rank that differs from rank 0."""
    first = ranks[0]
    for rank, other in enumerate(ranks):
        if other.config != first.config or other.weights != first.weights:
            what = "config.json" if other.config != first.config else "weight files (index, headers or lengths)"
            message = f"rank {rank} ({other.host}) has another checkpoint than rank 0 ({first.host}): their {what} differ"
            raise CheckpointError(message, "give every node the same files; `workbench fingerprint` hashes them")
        for name in ("workbench", "torch", "python"):
            ours, theirs = getattr(first, name), getattr(other, name)
            if ours != theirs:
                message = f"rank {rank} ({other.host}) runs {name} {theirs}, rank 0 ({first.host}) {ours}"
                raise OtherLibrary(message, "install the same environment on every node; results would differ")


def _own_version() -> str:
    try:
        return version("workbench-moe")
    except PackageNotFoundError:
        return "source"
