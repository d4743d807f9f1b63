"""The collector's HTTP surface.

    POST /v1/segments   segments of our producers            -> {rejected, received, answered}, after the commit
    POST /v1/arrow      Arrow IPC streams, X-Producer, X-Boot, X-Seq -> the same
    POST /v1/traces, /v1/logs, /v1/metrics   OTLP/HTTP, protobuf or JSON
    POST /v1/sql        {sql, params?, limit?, timeout?}     -> Arrow IPC stream
    GET  /healthz       open to everybody, says nothing but how it is
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from traces import sql as statements
from traces.collector.arrow_body import arrow_entry, arrow_stream
from traces.collector.body import read_body
from traces.collector.otlp_endpoint import OtlpEndpoint
from traces.collector.writer import Overloaded, Rejected, Unavailable, Writer
from traces.database import Entry
from traces.decode import Unreadable, decode, loss_rows
from traces.errors import QueryError
from traces.ledger import Ledger
from traces.post import Answer
from traces.segment import Torn, parse

LONGEST_QUERY = 120.0
_RETRY = {"Retry-After": "1"}
_OTLP = ("/v1/traces", "/v1/logs", "/v1/metrics")


class Question(msgspec.Struct, frozen=True):
    """Body of /v1/sql. `timeout` in seconds."""

    sql: str
    params: list[Any] | dict[str, Any] | None = None
    limit: int | None = None
    timeout: float = statements.TIMEOUT


class Collector:
    """Handlers of one run's collector. `token` None leaves everything open; OTLP is open on loopback either way."""

    def __init__(self, writer: Writer, token: str, loopback: bool) -> None:
        self.writer = writer
        self.last_post = time.monotonic()
        self._token = token.encode()
        self._open = {"/healthz", *(_OTLP if loopback else ())}
        self._decoders = ThreadPoolExecutor(2, "decode")
        self._readers = ThreadPoolExecutor(4, "query")
        self._otlp = OtlpEndpoint()

    def app(self) -> Starlette:
        routes = [
            Route("/healthz", self.health, methods=["GET"]),
            Route("/v1/segments", self._guarded(self.segments), methods=["POST"]),
            Route("/v1/arrow", self._guarded(self.arrow), methods=["POST"]),
            Route("/v1/sql", self._guarded(self.query), methods=["POST"]),
            *(Route(path, self._guarded(self.otlp), methods=["POST"]) for path in _OTLP),
        ]
        return Starlette(routes=routes)

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Checks the token before the body is read, and turns the writer's refusals into statuses a producer understands."""

        async def guarded(request: Request) -> Response:
            if request.url.path not in self._open and not self._known(request):
                return _json({"message": "a bearer token is needed", "hint": "it is in collector.token in the run folder"}, 401)
            self.last_post = time.monotonic()
            try:
                return await handler(request)
            except Overloaded:
                return _json({"message": "the collector has too much queued"}, 503, _RETRY)
            except Unavailable as error:
                return _json({"message": str(error)}, 503, _RETRY)
            except ClientDisconnect:
                return Response(status_code=499)
            except HTTPException as error:
                return _json({"message": error.detail}, error.status_code)

        return guarded

    def _known(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)

    async def health(self, request: Request) -> Response:
        try:
            _ = self.writer.connection
        except Unavailable as error:
            return _json({"status": str(error)}, 503, _RETRY)
        return _json({"status": "ok", "rows": self.writer.rows, "commits": self.writer.commits})

    async def segments(self, request: Request) -> Response:
        received = time.time_ns()
        body = await read_body(request)
        loop = asyncio.get_running_loop()
        try:
            patient = request.headers.get("x-patient") == "1"
            decoded = await loop.run_in_executor(self._decoders, _decode_all, body, self.writer.ledger, patient)
        except Torn as error:
            raise HTTPException(400, str(error)) from error
        rejected = [index for index, entry in enumerate(decoded) if entry is None]
        futures = {index: self.writer.submit(entry) for index, entry in enumerate(decoded) if entry is not None and entry.tables}
        for index, future in futures.items():
            try:
                await asyncio.wrap_future(future)
            except Rejected:
                rejected.append(index)
        return _json(Answer(sorted(rejected), received, time.time_ns()))

    async def arrow(self, request: Request) -> Response:
        received = time.time_ns()
        body = await read_body(request)
        try:
            key = request.headers["x-producer"], request.headers["x-boot"], int(request.headers["x-seq"])
            entry = await asyncio.get_running_loop().run_in_executor(self._decoders, arrow_entry, body, key)
        except KeyError as error:
            raise HTTPException(400, f"header {error} is missing") from error
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        try:
            await asyncio.wrap_future(self.writer.submit(entry))
        except Rejected as error:
            raise HTTPException(422, str(error)) from error
        return _json(Answer([], received, time.time_ns()))

    async def query(self, request: Request) -> Response:
        body = await read_body(request, 4 << 20)
        try:
            question = msgspec.json.decode(body, type=Question)
        except msgspec.MsgspecError as error:
            return _json({"message": f"not a query: {error}", "hint": 'send {"sql": "..."}'}, 400)
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._readers, self._run, question)
        except QueryError as error:
            return _json({"message": error.message, "hint": error.hint}, 400)
        headers = {"X-Truncated": str(int(answer.truncated))}
        return Response(arrow_stream(answer.table), headers=headers, media_type="application/vnd.apache.arrow.stream")

    def _run(self, question: Question) -> statements.Answer:
        timeout = min(max(0.01, question.timeout), LONGEST_QUERY)
        return statements.run(self.writer.connection, question.sql, question.params, question.limit, timeout)

    async def otlp(self, request: Request) -> Response:
        body = await read_body(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        signal = request.url.path.rpartition("/")[2]
        rows = await asyncio.get_running_loop().run_in_executor(self._decoders, self._otlp.rows, signal, kind, body)
        if rows.count:
            try:
                await asyncio.wrap_future(self.writer.submit(Entry(None, rows.tables)))
            except Rejected as error:
                raise HTTPException(400, str(error)) from error
        return Response(self._otlp.answer(signal, kind), media_type=kind)


def _decode_all(body: bytes, ledger: Ledger, patient: bool) -> list[Entry | None]:
    """An entry per segment: None for one that can never be read, an empty one for a duplicate. Raises Torn."""
    decoded: list[Entry | None] = []
    for segment in parse(body):
        if segment.key in ledger:
            decoded.append(Entry(segment.key, {}))
            continue
        try:
            rows = decode(segment)
        except (Unreadable, Torn):
            decoded.append(None)
            continue
        tables = loss_rows(rows, segment.header.producer).tables if rows.lost else rows.tables
        decoded.append(Entry(segment.key, tables, patient))
    return decoded


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, "application/json")


