"""Errors of the HTTP API, as the JSON the OpenAI clients understand."""

from __future__ import annotations

from starlette.responses import Response

from runtime.server.wire import encode


class ApiError(Exception):
    """Becomes {"error": {message, type, param, code}} with `status`."""

    def __init__(
        self, status: int, message: str, *, kind: str = "invalid_request_error", param: str | None = None,
        code: str | None = None, retry_after: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> bytes:
        return encode({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})

    def response(self) -> Response:
        headers = {"retry-after": str(self.retry_after)} if self.retry_after is not None else None
        return Response(self.body(), self.status, headers, "application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request cannot be carried out as it is."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, retry_after: int | None = 1) -> ApiError:
    """503: the server is loading, draining or has lost a rank."""
    return ApiError(503, message, kind="service_unavailable", code="unavailable", retry_after=retry_after)
