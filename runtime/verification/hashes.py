"""A manifest of checksums: made from a checkpoint that is known to be good, compared with another copy.

Two forms are read: our own JSON with a hash a tensor, which survives another cut into shards, and the output of `sha256sum *.safetensors`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from runtime.verification.document import Problem
from runtime.verification.scan import Tensor
from traces.errors import UsageError
from traces.folder import write_atomic

SCHEMA = "workbench.hashes.v1"
ALGORITHM = "blake2b-128"
_SUM = re.compile(r"^([0-9a-f]{64})\s+\*?(\S.*)$")


class Manifest(msgspec.Struct, frozen=True):
    """Hashes of tensors as stored, by name; or of whole files (`sha256sum`)."""

    schema: str = SCHEMA
    algorithm: str = ALGORITHM
    tensors: dict[str, str] = {}
    files: dict[str, str] = {}


def read_manifest(path: Path) -> Manifest:
    """UsageError for what is neither form."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the manifest {path} cannot be read: {error}", "`workbench verify MODEL --write-hash FILE` makes one") from error
    lines = [found for line in text.splitlines() if (found := _SUM.match(line.strip()))]
    if lines:
        return Manifest(algorithm="sha256", files={Path(found.group(2)).name: found.group(1) for found in lines})
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is no manifest: {error}", "`workbench verify MODEL --write-hash FILE` makes one") from error
    if manifest.schema != SCHEMA or manifest.algorithm != ALGORITHM:
        raise UsageError(f"{path} is a manifest of another kind ({manifest.schema}, {manifest.algorithm})", f"{SCHEMA} is read")
    return manifest


def write_manifest(path: Path, tensors: Mapping[str, str]) -> None:
    """Raises UsageError when it cannot be written."""
    try:
        write_atomic(path, msgspec.json.format(msgspec.json.encode(Manifest(tensors=dict(sorted(tensors.items())))), indent=1))
    except OSError as error:
        raise UsageError(f"the manifest {path} cannot be written: {error.strerror or error}") from error


class Hashed:
    """Watches one tensor; its hash goes to `sink`, and is compared with `expected` if there is one."""

    def __init__(self, tensor: Tensor, sink: dict[str, str], expected: str | None) -> None:
        self._tensor, self._sink, self._expected = tensor, sink, expected
        self._digest = hashlib.blake2b(digest_size=16)

    def feed(self, piece: memoryview) -> None:
        self._digest.update(piece)

    def done(self) -> list[Problem]:
        found = self._sink[self._tensor.name] = self._digest.hexdigest()
        if self._expected is None or found == self._expected:
            return []
        return [Problem(self._tensor.file, self._tensor.name, "hash", f"{found}, the manifest says {self._expected}")]


def unmatched(manifest: Manifest, names: set[str]) -> list[Problem]:
    """Tensors that only the manifest or only the checkpoint has."""
    lost = [Problem("", name, "missing", "in the manifest, in no header") for name in sorted(set(manifest.tensors) - names)]
    return lost + [Problem("", name, "extra", "not in the manifest") for name in sorted(names - set(manifest.tensors))]


def compare_files(root: Path, manifest: Manifest, names: list[str]) -> list[Problem]:
    """Whole files against `sha256sum`."""
    problems = []
    for name in names:
        expected = manifest.files.get(name)
        if expected is None:
            problems.append(Problem(name, "", "extra", "not in the manifest"))
            continue
        try:
            with (root / name).open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            problems.append(Problem(name, "", "unreadable", error.strerror or str(error)))
            continue
        if found != expected:
            problems.append(Problem(name, "", "hash", f"{found}, the manifest says {expected}"))
    shards = {name for name in manifest.files if name.endswith(".safetensors")}
    return problems + [Problem(name, "", "missing-file", "in the manifest, not in the index") for name in sorted(shards - set(names))]
