"""Every header against the index and the config, in seconds and without a weight byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from probes.checkpoint import INDEX, read_config
from runtime.verification.document import Problem, ProblemKind
from runtime.verification.expectation import Expectation, expectation
from runtime.verification.folder import Folder, read_folder
from runtime.verification.header_file import HeaderFile, read_header_file

BUFFERS = ("rotary_emb.inv_freq",)  # saved by old versions, computed by every engine


@dataclass(slots=True)
class Examined:
    """A checkpoint's headers, and everything that is wrong with them."""

    root: Path
    config: dict[str, Any]
    files: list[HeaderFile]
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def tensors(self) -> int:
        return sum(len(file.entries) for file in self.files)

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for file in self.files for entry in file.entries.values())


def examine(path: str | Path) -> Examined:
    """CheckpointError for what is no checkpoint at all; damage is in `problems`."""
    root = Path(path)
    folder = read_folder(root)
    config = read_config(root)
    files = [read_header_file(root / name) for name in folder.files]
    found = Examined(root, config, files, [*folder.problems, *(problem for file in files for problem in file.problems)])
    where = _places(files, found)
    _against_index(folder, where, found)
    _against_config(config, where, found)
    return found


def _places(files: list[HeaderFile], found: Examined) -> dict[str, HeaderFile]:
    """Tensor -> the file that holds it first."""
    where: dict[str, HeaderFile] = {}
    for file in files:
        for name in file.entries:
            if name in where:
                found.problems.append(Problem(file.file, name, "duplicate", f"stored in {where[name].file}, too"))
            else:
                where[name] = file
    return where


def _against_index(folder: Folder, where: Mapping[str, HeaderFile], found: Examined) -> None:
    if folder.weight_map is None:
        return
    unread = {file.file for file in found.files if file.problems} | {p.file for p in folder.problems if p.kind == "missing-file"}
    for name, file in folder.weight_map.items():
        holder = where.get(name)
        if holder is None:
            if file not in unread:  # a file that could not be read explains what it lacks
                found.problems.append(Problem(file, name, "missing", "the index says it is there, its header does not"))
        elif holder.file != file:
            found.problems.append(Problem(holder.file, name, "misplaced", f"the index says {file}"))
    for name, holder in where.items():
        if name not in folder.weight_map:
            found.problems.append(Problem(holder.file, name, "extra", "not in the index"))
    stated = folder.stated_bytes
    if stated is not None and not found.problems and stated != found.nbytes:
        found.notes.append(f"{INDEX} states a total of {stated} bytes, the headers hold {found.nbytes}")


def _against_config(config: Mapping[str, Any], where: Mapping[str, HeaderFile], found: Examined) -> None:
    expected = expectation(config, where)
    if expected is None:
        kind = config.get("model_type")
        found.notes.append(f"the tensors of model_type {kind} are not known here: nothing was compared with the config")
        return
    found.notes += expected.notes
    listed = {(problem.tensor, problem.kind) for problem in found.problems}
    broken = any(problem.kind in ("unreadable", "bad-header", "truncated", "missing-file") for problem in found.problems)
    for name in expected.tensors:
        if name not in where and name not in expected.optional and (name, "missing") not in listed and not broken:
            found.problems.append(Problem("", name, "missing", "the config asks for it, no header holds it"))
    for name, holder in where.items():
        _one(name, holder, expected, found, listed, config)
    if broken:
        found.notes.append("tensors that no readable header holds were not listed: the damaged files may hold them")


def _one(
    name: str, holder: HeaderFile, expected: Expectation, found: Examined, listed: set[tuple[str, ProblemKind]], config: Mapping[str, Any]
) -> None:
    if name not in expected.tensors:
        if (name, "extra") not in listed and not name.endswith(BUFFERS) and not _tied_head(name, config):
            found.problems.append(Problem(holder.file, name, "extra", "the config knows no such tensor"))
        return
    fault = expected.fault(name, holder.entries[name])
    if fault is not None:
        found.problems.append(Problem(holder.file, name, cast(ProblemKind, fault[0]), fault[1]))


def _tied_head(name: str, config: Mapping[str, Any]) -> bool:
    """Some files store a tied matrix twice."""
    return name.endswith("lm_head.weight") and bool(config.get("tie_word_embeddings"))


def counts(problems: list[Problem]) -> dict[str, int]:
    """Problems by kind, the most frequent first."""
    return dict(Counter(problem.kind for problem in problems).most_common())
