"""A request for answers from its first byte to its last: chat and completions differ only in their `Endpoint`."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runtime.server.body import read_body
from runtime.server.call import Call, Shape
from runtime.server.disconnect import ClientGone, unless_gone
from runtime.server.errors import ApiError
from runtime.server.gateway import Gateway
from runtime.server.generation_request import GenerationRequest
from runtime.server.prompt import Prompt
from runtime.server.request_trace import RequestTrace
from runtime.server.wire import DONE, event

LONGEST_ID = 128  # characters of a client's X-Request-Id that are taken over


class Endpoint(Protocol):
    """What tells chat from completions. `operation` is the GenAI convention's name."""

    operation: str

    def parse(self, body: bytes) -> Any: ...
    async def prompts(self, gateway: Gateway, request: Any, trace: RequestTrace) -> list[Prompt]: ...
    def shape(self, gateway: Gateway, request: Any, trace: RequestTrace) -> Shape: ...


class Generation(Response):
    """An ASGI response that does its own sending, so that it can time it and notice a client that leaves."""

    def __init__(self, gateway: Gateway, endpoint: Endpoint, request: Request) -> None:
        self._gateway, self._endpoint, self._request = gateway, endpoint, request
        self._call: Call | None = None
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway, received = self._gateway, time.time_ns()
        try:
            gateway.admit()
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        trace = gateway.trace(received, self._request.headers.get("traceparent"))
        try:
            await self._answer(trace, scope, receive, send)
        finally:
            gateway.pressure.leave()

    async def _answer(self, trace: RequestTrace, scope: Scope, receive: Receive, send: Send) -> None:
        status, reason = "error", "internal error"
        try:
            body = await self._body()
            async with asyncio.timeout(self._gateway.config.request_timeout):
                await unless_gone(receive, self._serve(body, trace, send), lambda: self._call is not None and self._call.answered)
            status, reason = "ok", ""
        except ClientGone:
            status, reason = "cancelled", "the client disconnected"
        except TimeoutError:
            limit = self._gateway.config.request_timeout
            status, reason = "timeout", f"not answered within {limit:g} s (request_timeout)"
            await self._send_error(ApiError(504, reason, kind="timeout", code="request_timeout"), scope, receive, send)
        except ApiError as error:
            reason = error.message
            await self._send_error(error, scope, receive, send)
        finally:
            if self._call is not None:
                self._call.end(self._gateway, status, reason)
            trace.end(status, time.time_ns(), reason)

    async def _body(self) -> bytes:
        """At most what the largest images can come to (base64 makes 4 of 3)."""
        config = self._gateway.config
        return await read_body(self._request, config.max_images * config.max_image_bytes * 4 // 3 + (16 << 20))

    async def _serve(self, body: bytes, trace: RequestTrace, send: Send) -> None:
        gateway, endpoint = self._gateway, self._endpoint
        request: GenerationRequest = endpoint.parse(body)
        gateway.check_model(request.model)
        request.check(gateway.vocabulary)
        replica = gateway.replica(self._request.headers.get("x-data-parallel-rank"))
        prompts = await endpoint.prompts(gateway, request, trace)
        self._call = call = Call(request, endpoint.shape(gateway, request, trace), trace, self._request_id(trace))
        for prompt in prompts:
            for number in range(request.answers):
                call.add(gateway, prompt, number, endpoint.operation, replica)
        await (call.stream(send) if request.stream else call.whole(send))
        end = time.time_ns()
        trace.stage("send", end, {"moe.send_total_ns": call.sending})
        for answer in call.answers:
            answer.request.trace.set({
                "gen_ai.usage.output_tokens": answer.generated,
                "gen_ai.response.finish_reasons": [answer.finish or ""],
                "moe.preemptions": answer.request.preemptions,
                "moe.cached_tokens": answer.request.cached or 0,
            })  # fmt: skip
            gateway.observe(answer.request, answer.token_times, answer.finish or "stop", end)

    def _request_id(self, trace: RequestTrace) -> str:
        """The client's own, when it is a plain short word; else ours."""
        given = self._request.headers.get("x-request-id", "")
        return given if 0 < len(given) <= LONGEST_ID and given.isascii() and given.isprintable() else trace.trace_id

    async def _send_error(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        """As a response, or as the last event of a stream that has begun."""
        if self._call is not None and self._call.answered:
            return
        if self._call is not None and self._call.began:
            await send({"type": "http.response.body", "body": event(error.body()) + DONE, "more_body": False})
        else:
            await error.response()(scope, receive, send)
