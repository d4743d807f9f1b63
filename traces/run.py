"""A run folder: what ran, where its collector is, and the places of everything recorded about it."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from traces.address import CollectorAddress
from traces.errors import NotWritable, SchemaTooNew, UnknownRun
from traces.folder import file_lock, readable_json, writable, write_atomic
from traces.schema import VERSION

SUBFOLDERS = ("spool", "logs", "stacks", "reports", "findings")


class RunInfo(msgspec.Struct, kw_only=True):
    """The content of run.json. Times are ns since the epoch; `endpoint` is None until a server listens."""

    id: str
    created: int
    engine: str = ""
    model: str = ""
    model_path: str = ""
    world_size: int = 0
    layout: dict[str, int] = {}
    command: list[str] = []
    state: str = "running"
    fingerprints: dict[str, dict[str, Any]] = {}
    endpoint: dict[str, Any] | None = None
    config: dict[str, Any] = {}
    schema_version: int = VERSION
    notes: dict[str, Any] = {}


def runs_root() -> Path:
    """Folder that holds all runs: $WORKBENCH_RUNS, else the user's data folder."""
    chosen = os.environ.get("WORKBENCH_RUNS")
    return Path(chosen) if chosen else platformdirs.user_data_path("workbench") / "runs"


class Run:
    """One run folder. Several processes may hold the same run and change it."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path).resolve()
        self._seen: tuple[int, int, int] | None = None
        self._info: RunInfo | None = None
        self.id = self.info.id

    def __repr__(self) -> str:
        return f"Run({self.id})"

    @property
    def info(self) -> RunInfo:
        """The current run.json, read again when it has changed. Raises SchemaTooNew, UnknownRun."""
        file = self.path / "run.json"
        try:
            stat = file.stat()
        except OSError as error:
            raise UnknownRun(f"{self.path} is not a run: {error.strerror}", "`workbench runs` lists the runs there are") from error
        seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if self._info is None or seen != self._seen:
            self._info, self._seen = _read_info(file), seen
        return self._info

    @property
    def state(self) -> str:
        """running | closed | crashed. A run that says running while nothing collects for it has crashed."""
        stated = self.info.state
        return "crashed" if stated == "running" and self.database.exists() and self.collector() is None else stated

    @property
    def database(self) -> Path:
        return self.path / "traces.duckdb"

    def folder(self, name: str) -> Path:
        """spool, logs, stacks, reports or findings; created when absent. Raises NotWritable."""
        with writable(self.path):
            (self.path / name).mkdir(exist_ok=True)
        return self.path / name

    def collector(self) -> CollectorAddress | None:
        """Address of the live collector, or None. Does not ask it anything."""
        return CollectorAddress.read(self.path / "collector.json")

    def update(self, **changes: Any) -> RunInfo:
        """Sets fields of run.json. Safe against other processes doing the same. Raises NotWritable."""
        with self._edit() as info:
            for name, value in changes.items():
                if name not in RunInfo.__struct_fields__:
                    raise TypeError(f"run.json has no field {name!r}")
                setattr(info, name, value)
        return self.info

    def add_fingerprint(self, producer: str, fingerprint: dict[str, Any]) -> None:
        """Stores the environment of one producer. Raises NotWritable."""
        with self._edit() as info:
            info.fingerprints[producer] = fingerprint

    @contextmanager
    def _edit(self) -> Iterator[RunInfo]:
        with writable(self.path), file_lock(self.path / ".run.lock"):
            info = _read_info(self.path / "run.json")
            yield info
            write_atomic(self.path / "run.json", msgspec.json.format(msgspec.json.encode(info), indent=1))


def create_run(*, engine: str = "", model: str = "", root: Path | None = None, latest: bool = True, **fields: Any) -> Run:
    """Makes a run folder and points `latest` at it; without `latest` only where nothing else is. Raises NotWritable."""
    root = runs_root() if root is None else Path(root)
    created = time.time_ns()
    name = re.sub(r"[^a-z0-9.]+", "-", Path(model).name.lower()).strip("-.")[:40] or engine or "run"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(created / 1e9))
    info = RunInfo(id=f"{stamp}-{name}-{secrets.token_hex(2)}", created=created, engine=engine, model=model, **fields)
    path = root / info.id
    with writable(root):
        path.mkdir(parents=True)
        for folder in SUBFOLDERS:
            (path / folder).mkdir()
        write_atomic(path / "run.json", msgspec.json.format(msgspec.json.encode(info), indent=1))
        if latest or not (root / "latest").exists():
            _point_latest(root, info.id)
    return Run(path)


@contextmanager
def whole_run(*, root: Path | None = None, **fields: Any) -> Iterator[Run]:
    """A new run that is closed at the end, or gone again where something is raised: nobody finds half an answer as the latest one.

    What a diagnosis makes for itself has latest=False: whoever says `latest` means what was served or brought in.
    """
    latest = (runs_root() if root is None else Path(root)) / "latest"
    before = _target(latest)
    run = create_run(root=root, **fields)
    try:
        yield run
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        if _target(latest) == run.id:
            latest.unlink()
            if before is not None:
                _point_latest(latest.parent, before)
        raise
    run.update(state="closed")


def list_runs(root: Path | None = None) -> list[Run]:
    """Every readable run under the root, oldest first. Folders that cannot be read as runs are left out."""
    root = runs_root() if root is None else Path(root)
    runs = []
    for file in root.glob("*/run.json"):
        if not file.parent.is_symlink():
            try:
                runs.append(Run(file.parent))
            except (UnknownRun, SchemaTooNew):
                continue
    return sorted(runs, key=lambda run: run.info.created)


def find_run(name: str = "latest", root: Path | None = None) -> Run:
    """A run by id, unique prefix, path, or "latest". Raises UnknownRun, SchemaTooNew."""
    root = runs_root() if root is None else Path(root)
    if os.sep in name or name in (".", ".."):
        return Run(Path(name))
    for path in (root / name, Path(name)) if name else ():
        if (path / "run.json").exists():
            return Run(path)
    ids = sorted(file.parent.name for file in root.glob("*/run.json") if not file.parent.is_symlink())
    if name == "latest" and ids:
        return list_runs(root)[-1]
    matches = [id_ for id_ in ids if name and id_.startswith(name)]
    if len(matches) == 1:
        return Run(root / matches[0])
    raise UnknownRun(*_unknown(name, matches, ids, root))


def _unknown(name: str, matches: list[str], ids: list[str], root: Path) -> tuple[str, str]:
    """Message and hint for a name that does not name exactly one run."""
    if not ids:
        return f"there is no run in {root}", "`workbench demo` or `workbench serve MODEL` makes one; WORKBENCH_RUNS says where runs live"
    if matches:
        return f"{len(matches)} runs begin with {name!r}: {', '.join(matches[-5:])}", "give more of the id"
    near = difflib.get_close_matches(name, ids, n=3, cutoff=0.3) + [id_ for id_ in ids if name in id_]
    return f"no run is called {name!r}", f"near: {', '.join(dict.fromkeys(near or ids[-3:]))}"


def _read_info(file: Path) -> RunInfo:
    raw = readable_json(file)
    version = raw.get("schema_version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise SchemaTooNew(
            f"run {file.parent.name} was written with schema version {version}; this workbench reads up to {VERSION}",
            "upgrade the workbench (pip install --upgrade workbench-moe) and open the run again",
        )
    try:
        return msgspec.convert(raw, RunInfo)
    except msgspec.ValidationError as error:
        raise UnknownRun(f"{file} is not a run's description: {error}", "`workbench runs` lists the runs there are") from error


def _target(pointer: Path) -> str | None:
    return os.readlink(pointer) if pointer.is_symlink() else None


def _point_latest(root: Path, run_id: str) -> None:
    pointer = root / f".latest-{secrets.token_hex(4)}"
    pointer.symlink_to(run_id)
    try:
        pointer.replace(root / "latest")
    except IsADirectoryError as error:
        pointer.unlink()
        raise NotWritable(f"{root / 'latest'} is a folder, not a pointer to a run", "move it away") from error
