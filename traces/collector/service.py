"""The life of a collector process: token, listening, collector.json, recovery, and a clean end."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import uvicorn
from loguru import logger

from traces import recovery
from traces.address import CollectorAddress
from traces.collector.app import Collector
from traces.collector.writer import Overloaded, Rejected, Unavailable, Writer
from traces.database import Entry
from traces.errors import UsageError
from traces.folder import writable, write_atomic
from traces.run import Run

RECOVERY_SECONDS = 2.0
# After its parent is gone a collector waits this long without posts, so that ranks that are still ending can deliver.
ORPHAN_SECONDS = 3.0
_AT_ONCE = 16 << 20
_LAST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """How to listen. `parent` is the process whose end ends the collector; 0 for none."""

    host: str = "127.0.0.1"
    port: int = 0
    parent: int = 0


class _Server(uvicorn.Server):
    """uvicorn raises the signal that ended it once more after serving, which would kill the process before the store is closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(run: Run, options: Options) -> None:
    """Collects for a run until told to stop. Raises WorkbenchError."""
    with writable(run.path):
        listener = _listen(options)
        token = _token(run.path / "collector.token")
        run.folder("spool")
        writer = Writer(run.database)
    try:
        asyncio.run(_serve(run, options, listener, writer, token))
    finally:
        last = time.monotonic() + _LAST_SECONDS
        search = recovery.Search(run.path / "spool", dead_only=True, trusting=True, tidy=True)
        bring_in(writer, search, lambda: time.monotonic() > last)
        writer.close()
        (run.path / "collector.json").unlink(missing_ok=True)
        run.update(state="closed")
        logger.info("collector of {} ended: {} rows in {} commits", run.id, writer.rows, writer.commits)


async def _serve(run: Run, options: Options, listener: socket.socket, writer: Writer, token: str) -> None:
    host, port = listener.getsockname()[:2]
    collector = Collector(writer, token, loopback=_is_loopback(host))
    config = uvicorn.Config(
        collector.app(), log_config=None, access_log=False, lifespan="off", timeout_keep_alive=120, timeout_graceful_shutdown=20,
        server_header=False, date_header=False,
    )
    server = _Server(config)

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    secret = str(run.path / "collector.token")
    address = CollectorAddress(host=host, port=port, pid=os.getpid(), token_file=secret, machine=socket.gethostname())
    write_atomic(run.path / "collector.json", msgspec.json.encode(address))
    run.update(state="running")
    logger.info("collecting for {} on {}", run.id, address.url)
    watch = asyncio.create_task(_watch(run, options, collector, server))
    await server.serve(sockets=[listener])
    watch.cancel()


async def _watch(run: Run, options: Options, collector: Collector, server: uvicorn.Server) -> None:
    """Brings in what dead producers left, and ends the collector when its parent is gone."""
    search = recovery.Search(run.path / "spool", dead_only=True, tidy=True)
    while not server.should_exit:
        if options.parent and os.getppid() != options.parent and time.monotonic() - collector.last_post > ORPHAN_SECONDS:
            logger.warning("the process that started this collector is gone")
            server.should_exit = True
        await asyncio.to_thread(bring_in, collector.writer, search, lambda: server.should_exit)
        search = replace(search, trusting=True)
        await asyncio.sleep(RECOVERY_SECONDS)


def bring_in(writer: Writer, search: recovery.Search, enough: Callable[[], bool]) -> None:
    """Stores what dead producers left in spool and ring, many segments to a commit. When it is `enough` the rest stays for later."""
    waiting: list[tuple[Future[bool], Entry, Path]] = []
    size = 0
    try:
        for entry, path in recovery.entries(search, writer.ledger):
            waiting.append((writer.submit(entry), entry, path))
            size += entry.size
            if size > _AT_ONCE:
                _settle(waiting)
                size = 0
            if enough():
                break
        _settle(waiting)
        recovery.mark_stored(search, writer.ledger)
    except (Overloaded, Unavailable, Rejected, OSError) as error:
        logger.warning("what dead producers left stays where it is for now: {}", error)


def _settle(waiting: list[tuple[Future[bool], Entry, Path]]) -> None:
    """Waits for the commits, and tidies the files away. Raises what the writer refused with."""
    rows: Counter[str] = Counter()
    for future, entry, path in waiting:
        future.result()
        rows[path.parent.name] += entry.rows
    for producer, count in rows.items():
        logger.info("brought in {} rows that {} had left behind", count, producer)
    waiting.clear()


def _listen(options: Options) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        message = f"cannot listen on {options.host}:{options.port}: {error.strerror}"
        raise UsageError(message, "choose another --bind or --port; 0 is any") from error
    listener.listen(512)
    return listener


def _is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith("127.")


def _token(file: Path) -> str:
    """The run's token; a restarted collector keeps it."""
    if file.exists() and file.stat().st_mode & 0o077 == 0:
        token = file.read_text().strip()
        if token:
            return token
    token = secrets.token_urlsafe(32)
    write_atomic(file, token.encode(), mode=0o600)
    return token


