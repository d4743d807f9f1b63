"""The HTTP application: OpenAI's endpoints, health, metrics, control."""

from __future__ import annotations

import logging
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runtime.server import tokenize
from runtime.server.body import read_body
from runtime.server.chat import Chat
from runtime.server.completion import Completion
from runtime.server.control import Control
from runtime.server.errors import ApiError
from runtime.server.gateway import Gateway
from runtime.server.generation import Generation
from runtime.server.metrics import CONTENT_TYPE
from runtime.server.wire import encode

log = logging.getLogger("runtime.api")
MOST_BODY = 16 << 20  # bytes, where no image can be in it


class Api:
    """Handlers that need the gateway."""

    def __init__(self, gateway: Gateway, run_id: str) -> None:
        self._gateway = gateway
        self._run_id = run_id

    async def chat(self, request: Request) -> Response:
        return Generation(self._gateway, Chat(), request)

    async def completion(self, request: Request) -> Response:
        return Generation(self._gateway, Completion(), request)

    async def tokenize(self, request: Request) -> Response:
        return _json(tokenize.tokenize(self._gateway, await read_body(request, MOST_BODY)))

    async def detokenize(self, request: Request) -> Response:
        return _json(tokenize.detokenize(self._gateway, await read_body(request, MOST_BODY)))

    async def models(self, _: Request) -> Response:
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._gateway.check_model(request.path_params["name"])
        return _json(self._model())

    async def health(self, _: Request) -> Response:
        """200 while requests are answered; 503 while loading, draining or dying."""
        hub, draining = self._gateway.hub, self._gateway.draining
        status = "dead" if hub.trouble.done() else "draining" if draining else "ok" if hub.ready.is_set() else "loading"
        ranks = [{"rank": s.rank, "ready": s.ready is not None, "phase": s.progress.phase if s.progress else "start"} for s in hub.states]
        return _json({"status": status, "model": self._gateway.model, "run": self._run_id, "ranks": ranks}, 200 if status == "ok" else 503)

    async def metrics(self, _: Request) -> Response:
        text = self._gateway.metrics.render(self._gateway.gauges(), self._gateway.pressure.refused)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def index(self, _: Request) -> Response:
        return _json({"server": "workbench", "run": self._run_id, "endpoints": [route.path for route in self.routes()]})

    def routes(self) -> list[Route]:
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completion, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/", self.index),
        ]

    def _model(self) -> dict[str, Any]:
        gateway = self._gateway
        created = gateway.started // 1_000_000_000
        head = {"id": gateway.model, "object": "model", "created": created, "owned_by": "workbench"}
        return {**head, "max_model_len": gateway.longest}


def build_app(gateway: Gateway, control: Control, run_id: str) -> Starlette:
    handlers: Any = {ApiError: _api_error, HTTPException: _http_error, Exception: _crash}
    return Starlette(routes=[*Api(gateway, run_id).routes(), *control.routes()], exception_handlers=handlers)


def _json(document: Any, status: int = 200) -> Response:
    return Response(encode(document), status, media_type="application/json")


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 of the router."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return ApiError(error.status_code, message, code="not_found" if error.status_code == 404 else None).response()


async def _crash(request: Request, error: Exception) -> Response:
    """Anything unforeseen: to the log with its traceback, to the client as one sentence."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return ApiError(500, "internal error; the server's log has the details (logs/api.log of the run)", kind="server_error").response()
