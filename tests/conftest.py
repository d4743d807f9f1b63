"""What tests of several rooms start: a small HTTP server, and ranks of a gloo job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

Reply = Callable[[str, str], tuple[int, bytes]]


@pytest.fixture
def http_server() -> Iterator[Callable[[Reply], str]]:
    """http_server(reply) -> the URL of a loopback server; reply(method, path) gives status and body."""
    made: list[ThreadingHTTPServer] = []

    def start(reply: Reply) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self._reply()

            def _reply(self) -> None:
                status, body = reply(self.command, self.path)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *parts: Any) -> None:
                """Nothing on stderr."""

        made.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=made[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{made[-1].server_port}"

    yield start
    for one in made:
        one.shutdown()
        one.server_close()


@pytest.fixture
def gloo_ranks() -> Callable[[str, int], list[str]]:
    """gloo_ranks(program, world) -> what each rank printed. The program finds torchrun's variables."""

    def run(program: str, world: int) -> list[str]:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        environment = {**os.environ, **shared, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
        ranks = [
            subprocess.Popen([sys.executable, "-c", program], env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(world)
        ]
        return [process.communicate(timeout=120)[0].strip() for process in ranks]

    return run
