"""/control: what a playbook may change on a live server. Bearer token of its own (file control.token in the run folder)."""

from __future__ import annotations

import asyncio
import base64
import hmac
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from probes.recorder import Recording
from probes.stacks import StackError, record_stacks
from runtime.placement import BadPlacement
from runtime.server.body import read_body
from runtime.server.chat_request import ChatMessage, ChatRequest, check_messages
from runtime.server.controller import Controller
from runtime.server.errors import ApiError, invalid
from runtime.server.gateway import Gateway
from runtime.server.request_trace import RequestTrace
from runtime.server.wire import encode

MAX_BODY = 64 << 20
MOST_PROFILED = 1000  # steps; some thousand operator calls each
S = TypeVar("S", bound=msgspec.Struct)
Handler = Callable[[Request], Awaitable[Any]]


class NewPlacement(msgspec.Struct):
    layers: list[list[int]]
    source: str = "control"
    reason: str = ""


class NewDetail(msgspec.Struct):
    every: int


class NewWindow(msgspec.Struct):
    steps: int


class WhichRank(msgspec.Struct):
    rank: int


class WhichPrompt(msgspec.Struct):
    messages: list[ChatMessage]


class Control:
    """The handlers; each answers with JSON."""

    def __init__(self, gateway: Gateway, controller: Controller, recorder: Recording, token: str) -> None:
        self._gateway = gateway
        self._controller = controller
        self._recorder = recorder
        self._token = token

    def routes(self) -> list[Route]:
        return [
            self._route("/control/state", self.state, "GET"),
            self._route("/control/placement", self.placement, "GET"),
            self._route("/control/placement", self.set_placement, "POST"),
            self._route("/control/detail", self.set_detail, "POST"),
            self._route("/control/window", self.window, "POST"),
            self._route("/control/profile", self.profile, "POST"),
            self._route("/control/stacks", self.stacks, "POST"),
            self._route("/control/prompt", self.prompt, "POST"),
        ]

    async def state(self, _: Request) -> Any:
        gateway, hub = self._gateway, self._gateway.hub
        return {
            "model": gateway.model,
            "world": hub.world,
            "layout": hub.layout.sizes(),
            "step": max(s.step for s in hub.states),
            "placement": self._controller.placement.version,
            "detail_every": self._controller.detail_every,
            "requests": gateway.admitted,
            "draining": gateway.draining,
            "loads": [
                {
                    "rank": s.rank, "pid": s.pid, "running": s.running, "waiting": s.waiting, "outstanding": s.outstanding,
                    "kv_used": s.kv_used, "kv_total": s.ready.kv_blocks if s.ready else 0, "device": s.ready.device if s.ready else "",
                }
                for s in hub.states
            ],
        }  # fmt: skip

    async def placement(self, _: Request) -> Any:
        return self._controller.describe()

    async def set_placement(self, request: Request) -> Any:
        asked = await _body(request, NewPlacement)
        self._serving()
        try:
            layers = tuple(tuple(layer) for layer in asked.layers)
            done = await self._controller.set_placement(layers, asked.source, asked.reason)
        except BadPlacement as error:
            raise invalid(str(error), "layers") from error
        self._gateway.router.forget()  # the ranks have dropped what they had cached
        return {"version": done.version, "step": done.step, "moved": done.moved, "stall_ns": done.stall_ns}

    async def set_detail(self, request: Request) -> Any:
        every = (await _body(request, NewDetail)).every
        if every < 0:
            raise invalid("every counts steps: 0 for none, 1 for all", "every")
        self._serving()
        return {"every": every, "step": await self._controller.set_detail(every)}

    async def window(self, request: Request) -> Any:
        steps = (await _body(request, NewWindow)).steps
        if not 1 <= steps <= 1_000_000:
            raise invalid("steps must be at least 1", "steps")
        self._serving()
        first, last = await self._controller.window(steps)
        self._recorder.event("window", first=first, last=last)
        return {"first": first, "last": last}

    async def profile(self, request: Request) -> Any:
        steps = (await _body(request, NewWindow)).steps
        if not 1 <= steps <= MOST_PROFILED:
            raise invalid(f"a profile takes 1 to {MOST_PROFILED} steps: it keeps every operator call in memory", "steps")
        if not self._gateway.config.telemetry:
            raise ApiError(409, "the server records nothing (--no-telemetry): a profile would be lost", kind="server_error")
        self._serving()
        first, last = await self._controller.profile(steps)
        return {"first": first, "last": last}

    async def stacks(self, request: Request) -> Any:
        rank = (await _body(request, WhichRank)).rank
        if not 0 <= rank < self._gateway.hub.world:
            raise invalid(f"there is no rank {rank}", "rank")
        state = self._gateway.hub.states[rank]
        pid = state.pid
        if state.host != socket.gethostname():
            raise ApiError(409, f"rank {rank} is process {pid} on {state.host}: its stacks can only be read there", kind="server_error")
        try:
            samples = await asyncio.to_thread(record_stacks, self._recorder, pid, rank)
        except StackError as error:
            raise ApiError(409, str(error), kind="server_error") from error
        return {"rank": rank, "pid": pid, "samples": samples}

    async def prompt(self, request: Request) -> Any:
        """What a rank would be given of a conversation: nothing is computed. Tensors are base64, little-endian, in C order."""
        asked = await _body(request, WhichPrompt)
        trace = RequestTrace(None, time.time_ns(), None)
        chat = ChatRequest(model=self._gateway.model, messages=asked.messages)
        check_messages(chat)
        made = await self._gateway.prompts.build(chat, trace)
        return {
            "tokens": made.tokens,
            "positions": base64.b64encode(made.positions).decode(),  # int64 [3, T]; empty for text alone
            "images": [
                {
                    "start": one.start, "count": one.count, "grid": one.grid, "width": one.width,
                    "pixels": base64.b64encode(one.data).decode(),  # float32 [P, width]
                }
                for one in made.images
            ],
        }  # fmt: skip

    def _serving(self) -> None:
        if not self._gateway.hub.ready.is_set():
            raise ApiError(503, "the model is still loading", kind="service_unavailable", retry_after=2)

    def _route(self, path: str, handler: Handler, method: str) -> Route:
        async def guarded(request: Request) -> Response:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                raise ApiError(401, "the control endpoints need the token of the run (file control.token)", kind="authentication_error")
            return Response(encode(await handler(request)), media_type="application/json")

        return Route(path, guarded, methods=[method])


async def _body(request: Request, kind: type[S]) -> S:
    body = await read_body(request, MAX_BODY)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid(str(error)) from error
