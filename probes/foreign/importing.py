"""Files of other systems into a run: each file is given to the reader that claims it, and what nobody claims is said, not skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes.foreign import collective_log, collective_rows, flight_recorder, flight_rows, inspector, ras_status, start_log
from traces.errors import UsageError
from traces.table import Table

HEAD = 1 << 16  # bytes that a reader may look at before it claims a file
MOST_FILES = 20_000

Rows = dict[Table, list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Reader:
    """`kind` names it in answers; `rows` reads all files of one import that it claimed, together: ranks explain one another.
    It gives how many rows each file had, and a warning for a file of which something was left out.
    """

    kind: str
    claims: Callable[[Path, bytes], bool]
    rows: Callable[[Sequence[Path]], tuple[Rows, dict[Path, int], dict[Path, str]]]


@dataclass(slots=True)
class Imported:
    """A file and what became of it. `kind` is empty where nobody claimed it."""

    path: Path
    kind: str = ""
    rows: int = 0
    warnings: list[str] = field(default_factory=list)


READERS = (
    Reader("flight-recorder", flight_recorder.claims, flight_rows.rows),
    Reader("nccl-ras", ras_status.claims, ras_status.rows),
    Reader("nccl-inspector", inspector.claims, inspector.rows),
    Reader("collective-log", collective_log.claims, collective_rows.rows),
    Reader("start-log", start_log.claims, start_log.rows),
)


def read(paths: Sequence[Path]) -> tuple[Rows, list[Imported]]:
    """Rows of all files and folders. Raises UsageError when a named file is of no known form, or a claimed one is damaged."""
    claimed: dict[str, list[Path]] = {}
    files: list[Imported] = []
    for path, named in _files(paths):
        reader = next((reader for reader in READERS if reader.claims(path, _head(path))), None)
        if reader is None:
            if named:
                known = ", ".join(reader.kind for reader in READERS)
                raise UsageError(f"{path} is of no form that can be imported", f"known: {known}")
            files.append(Imported(path, warnings=["of no known form: left out"]))
            continue
        claimed.setdefault(reader.kind, []).append(path)
    gathered: Rows = {}
    for reader in READERS:
        if chosen := claimed.get(reader.kind):
            rows, counts, warned = reader.rows(chosen)
            files += [Imported(path, reader.kind, counts[path], [warned[path]] if path in warned else []) for path in chosen]
            for table, values in rows.items():
                gathered.setdefault(table, []).extend(values)
    if not gathered:
        raise UsageError("nothing that can be imported was found", f"known: {', '.join(reader.kind for reader in READERS)}")
    return gathered, files


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """(file, whether it was named itself). Folders are not searched deeper."""
    count = 0
    for path in paths:
        if path.is_dir():
            inside = sorted(child for child in path.iterdir() if child.is_file())
        elif path.is_file():
            inside = [path]
        else:
            raise UsageError(f"there is no file {path}", "give files, or folders that hold them")
        for child in inside:
            count += 1
            if count > MOST_FILES:
                raise UsageError(f"more than {MOST_FILES} files", "import them in parts")
            yield child, child == path


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEAD)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
