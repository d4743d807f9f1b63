"""Shared by the tests of the probes: rows gathered in memory, for tests of what a sampler measures (not of how rows are stored), and a
real HTTP server that speaks the chat completions API as a test wants it to."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from traces.table import Table


class Rows:
    """A sink that keeps the rows and checks them against the table: unknown columns and missing non-null ones are errors."""

    resource_id = "test"

    def __init__(self) -> None:
        self.by_table: dict[str, list[dict[str, Any]]] = {}

    def row(self, table: Table, **values: Any) -> None:
        columns = {column.name: column for column in table.columns}
        assert set(values) <= set(columns), f"unknown columns of {table.name}: {set(values) - set(columns)}"
        given = {"resource_id": self.resource_id, "ts": 0} | values
        for name, column in columns.items():
            assert column.nullable or given.get(name) is not None, f"{table.name}.{name} must not be null"
        self.by_table.setdefault(table.name, []).append(values)

    def register(self, role: str, **attrs: Any) -> None:
        self.by_table.setdefault("resource", []).append({"role": role, "attrs": attrs})

    def of(self, table: Table) -> list[dict[str, Any]]:
        return self.by_table.get(table.name, [])


@pytest.fixture
def rows() -> Rows:
    return Rows()


class ChatServer:
    """`answers` is asked for each request: a response, or a list of byte pieces to stream (an exception in it breaks the connection)."""

    def __init__(self) -> None:
        self.bodies = []
        self.headers = []
        self.gap = 0.0
        self.answer = lambda number: self.whole_answer()
        routes = [Route("/v1/models", self.models), Route("/v1/chat/completions", self.chat, methods=["POST"])]
        config = uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    words = ("The ", "star ", "is ", "red.")

    @staticmethod
    def chunk(text=None, finish=None, **more):
        delta = {"role": "assistant"} if text is None and finish is None and not more else {"content": text} if text else {}
        return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]} | more)}\n\n".encode()

    def whole_answer(self):
        usage = {"prompt_tokens": 11, "completion_tokens": 9}
        end = [self.chunk(finish="stop"), self.chunk(choices=[], usage=usage), b"data: [DONE]\n\n"]
        return [self.chunk(), *map(self.chunk, self.words), *end]

    async def models(self, request):
        return JSONResponse({"object": "list", "data": [{"id": "shapes-moe"}]})

    async def chat(self, request):
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        answer = self.answer(len(self.bodies) - 1)
        return StreamingResponse(self.pieces(answer), media_type="text/event-stream") if isinstance(answer, list) else answer

    async def pieces(self, parts):
        for part in parts:
            if isinstance(part, Exception):
                raise part
            yield part
            await asyncio.sleep(self.gap)

    def __enter__(self):
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *error):
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join()
        self._socket.close()


@pytest.fixture
def chat_server():
    with ChatServer() as running:
        yield running
