"""OTLP/HTTP: what may be sent, and how it is answered."""

from __future__ import annotations

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.exceptions import HTTPException

from traces import otlp
from traces.decode import Rows

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_EMPTY = {
    "traces": ExportTraceServiceResponse().SerializeToString(),
    "logs": ExportLogsServiceResponse().SerializeToString(),
    "metrics": ExportMetricsServiceResponse().SerializeToString(),
}


class OtlpEndpoint:
    """Remembers which resources have been written."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def rows(self, signal: str, content_type: str, body: bytes) -> Rows:
        """Raises 415 and 400."""
        if content_type not in (_PROTOBUF, _JSON):
            raise HTTPException(415, f"{_PROTOBUF} or {_JSON} is needed, not {content_type or 'nothing'}")
        try:
            return otlp.decode(signal, otlp.parse(signal, body, content_type == _JSON), self._known)
        except otlp.NotOtlp as error:
            raise HTTPException(400, str(error)) from error

    def answer(self, signal: str, content_type: str) -> bytes:
        """Everything was accepted."""
        return b"{}" if content_type == _JSON else _EMPTY[signal]
