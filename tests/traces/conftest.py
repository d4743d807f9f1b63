"""Real runs in temporary folders, real collectors as child processes."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import uvicorn

from traces.address import CollectorAddress
from traces.collector.app import Collector
from traces.collector.process import CollectorProcess, start
from traces.collector.writer import Writer
from traces.run import Run, create_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return create_run(engine="workbench", model="shapes-moe", root=tmp_path / "runs")


@pytest.fixture
def collect() -> Iterator[Callable[..., CollectorProcess]]:
    """Starts collectors that end with the test."""
    started: list[CollectorProcess] = []

    def begin(run: Run, **options: object) -> CollectorProcess:
        started.append(start(run, **options))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for process in started:
        if process.alive:
            process.stop()


@pytest.fixture
def collector(run: Run, collect: Callable[..., CollectorProcess]) -> CollectorProcess:
    return collect(run)


class Served:
    """A collector on real sockets, in a thread of this process: starts in no time."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.token = "a-token-of-the-test"
        self.writer = Writer(run.database)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        (run.path / "collector.token").write_text(self.token)
        secret = str(run.path / "collector.token")
        self.address = CollectorAddress(host="127.0.0.1", port=port, pid=os.getpid(), token_file=secret, machine=socket.gethostname())
        (run.path / "collector.json").write_bytes(msgspec.json.encode(self.address))
        app = Collector(self.writer, self.token, loopback=True).app()
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.writer.close()
        (self.run.path / "collector.json").unlink(missing_ok=True)
        self.run.update(state="closed")


@pytest.fixture
def served(run: Run) -> Iterator[Served]:
    service = Served(run)
    yield service
    service.close()


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.address.url, headers=served.address.headers, timeout=120, trust_env=False) as client:
        yield client


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Makes a folder one that this process may read and not write. Permissions mean nothing to root, so root becomes nobody."""
    changed: dict[Path, int] = {}

    def change(path: Path, mode: int) -> None:
        changed.setdefault(path, path.stat().st_mode)
        path.chmod(mode)

    def freeze(place: Path) -> None:
        for folder in place.parents:
            if not folder.stat().st_mode & 0o001:
                change(folder, 0o755)
        for entry in (place, *place.rglob("*")):
            change(entry, 0o555 if entry.is_dir() else 0o444)
        if os.getuid() == 0:
            os.seteuid(65534)

    yield freeze
    if os.getuid() == 0:
        os.seteuid(0)
    for path, mode in changed.items():
        path.chmod(mode)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Waits for something another process does; the limit is generous because the machine is shared."""

    def wait(happened: Callable[[], bool], limit: float = 150.0) -> None:
        deadline = time.monotonic() + limit
        while not happened():
            assert time.monotonic() < deadline, "did not happen"
            time.sleep(0.05)

    return wait


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts file systems of a given size, bytes. Needs root."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip("a small file system can only be mounted by root")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)
