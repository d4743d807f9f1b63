"""From a question to workbench.verify.v1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtime.verification.document import Problem, VerifyDocument
from runtime.verification.headers import Examined, counts, examine
from runtime.verification.scan import Tensor, Watcher, scan
from traces.run import Run

MOST = 1000  # problems in a document; all are counted
_HINTS = {
    "truncated": "download the truncated files again",
    "unreadable": "check the disk and the permissions, then verify again",
    "missing-file": "finish the download of the missing files",
    "missing-index": "download the index that belongs to the shards",
    "unlisted-file": "remove the files the index does not list, or use the index that belongs to them",
    "hash": "download the differing tensors' files again",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which examinations to run beside the headers'."""

    deep: bool = False
    hash_file: Path | None = None
    write_hash: Path | None = None
    run: Run | None = None  # compare the weights that its ranks hold
    told: Callable[[int, int], None] | None = None  # (bytes read, bytes in total)


def verify(path: str | Path, wanted: Wanted | None = None) -> VerifyDocument:
    """CheckpointError or UsageError for what cannot be examined; damage is the answer `damaged`."""
    wanted = wanted or Wanted()
    found = examine(path)
    checked = ["headers"]
    live = None
    if wanted.deep or wanted.hash_file or wanted.write_hash:
        checked += _read_values(found, wanted)
    if wanted.run is not None:
        from runtime.verification.live import compare_run

        live = compare_run(found, wanted.run)
        found.problems += live.problems
        found.notes += live.notes
        checked.append("live weights")
    problems = found.problems
    return VerifyDocument(
        path=str(path),
        status="damaged" if problems else "ok",
        tensors=found.tensors,
        bytes=found.nbytes,
        problems=problems[:MOST],
        counts=counts(problems),
        checked=checked,
        notes=found.notes + ([f"{len(problems) - MOST} more problems are counted, not listed"] if len(problems) > MOST else []),
        proven=live.proven if live is not None else {},
        unproven=live.unproven if live is not None else {},
        hint=_hint(problems),
    )


def _hint(problems: list[Problem]) -> str:
    for problem in problems:
        if problem.kind in _HINTS:
            return _HINTS[problem.kind]
    return "download the damaged files again, or save the checkpoint again" if problems else ""


def _read_values(found: Examined, wanted: Wanted) -> list[str]:
    """Reads every byte once; adds what it finds to `found.problems`, and returns what was examined."""
    from runtime.verification.hashes import Hashed, compare_files, read_manifest, unmatched, write_manifest
    from runtime.verification.values import Siblings, Values

    checked: list[str] = []
    siblings, hashes = Siblings(), dict[str, str]()
    manifest = read_manifest(wanted.hash_file) if wanted.hash_file is not None else None
    if manifest is not None and manifest.files:
        found.problems += compare_files(found.root, manifest, [file.file for file in found.files])
        checked.append("hash of files")
    hashing = wanted.write_hash is not None or (manifest is not None and not manifest.files)

    def watch(tensor: Tensor) -> list[Watcher]:
        watchers: list[Watcher] = []
        if wanted.deep:
            watchers.append(Values(tensor, siblings))
        if hashing:
            watchers.append(Hashed(tensor, hashes, manifest.tensors.get(tensor.name) if manifest is not None else None))
        return watchers

    total = found.nbytes
    if wanted.deep or hashing:
        told = wanted.told
        found.problems += scan(found.root, found.files, watch, None if told is None else lambda done: told(done, total))
    if wanted.deep:
        found.problems += siblings.outliers()
        checked.append("values")
    if manifest is not None and not manifest.files:
        found.problems += unmatched(manifest, {name for file in found.files for name in file.entries})
        checked.append("hash of tensors")
    if wanted.write_hash is not None:
        if found.problems:
            found.notes.append("no manifest was written: a damaged checkpoint is no reference")
        else:
            write_manifest(wanted.write_hash, hashes)
            checked.append(f"manifest written to {wanted.write_hash}")
    return checked
