"""OTLP -> rows of span, log, metric and resource; and spans -> OTLP.

Protobuf and JSON carry the same messages; in OTLP/JSON trace and span ids are hex, where protobuf's own JSON has base64
(opentelemetry-proto, docs/specification.md, "JSON Protobuf Encoding"). Names are stored as they come: normalisers for other engines live
with those who know them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from traces.decode import Rows, arrow_rows
from traces.otlp_metrics import metric_rows
from traces.schema import TABLES

REQUESTS: dict[str, type[Message]] = {
    "traces": ExportTraceServiceRequest,
    "logs": ExportLogsServiceRequest,
    "metrics": ExportMetricsServiceRequest,
}
_KINDS = ("internal", "internal", "server", "client", "producer", "consumer")
_NUMBERS = {
    "internal": Span.SPAN_KIND_INTERNAL, "server": Span.SPAN_KIND_SERVER, "client": Span.SPAN_KIND_CLIENT,
    "producer": Span.SPAN_KIND_PRODUCER, "consumer": Span.SPAN_KIND_CONSUMER,
}  # fmt: skip
_IDS = {"traceId", "spanId", "parentSpanId"}
_LEVELS = ("DEBUG", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_json = msgspec.json.Encoder(enc_hook=str).encode

Row = tuple[Any, ...]


class NotOtlp(ValueError):
    """The body is not a message of that signal."""


def parse(signal: str, body: bytes, as_json: bool) -> Message:
    """The request message of traces, logs or metrics. Raises NotOtlp."""
    kind = REQUESTS[signal]
    try:
        if not as_json:
            return kind.FromString(body)
        content = msgspec.json.decode(body, type=dict[str, Any])
        return json_format.ParseDict(_hex_to_base64(content), kind(), ignore_unknown_fields=True)
    except (DecodeError, json_format.ParseError, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise NotOtlp(f"not an OTLP {signal} request: {error}") from error


def decode(signal: str, message: Any, known: set[str]) -> Rows:
    """Rows of one request. `known` holds the resources already written; new ones get a resource row and are added."""
    found: dict[str, list[Row]] = {"resource": [], "span": [], "log": [], "metric": []}
    field, table, rows_of = _SIGNALS[signal]
    for group in getattr(message, field):
        attributes = attributes_of(group.resource.attributes)
        resource_id = _resource_id(attributes)
        rows = list(rows_of(group, resource_id))
        if rows and resource_id not in known:
            known.add(resource_id)
            found["resource"].append(_resource(resource_id, attributes, min(row[0] for row in rows)))
        found[table] += rows
    return Rows({name: arrow_rows(TABLES[name], rows) for name, rows in found.items() if rows})


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: value_of(pair.value) for pair in pairs}


def value_of(value: AnyValue) -> Any:
    """Bytes become base64, as in OTLP/JSON."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return None if kind is None else getattr(value, kind)


def json_of(content: Any) -> str:
    return _json(content).decode()


def _resource_id(attributes: dict[str, Any]) -> str:
    """service.name, told apart by instance or process."""
    name = str(attributes.get("service.name") or "unknown")
    part = attributes.get("service.instance.id") or attributes.get("process.pid")
    return f"{name}/{part}" if part else name


def _resource(resource_id: str, attributes: dict[str, Any], ts: int) -> Row:
    pid = attributes.get("process.pid")
    host = str(attributes.get("host.name") or "")
    return resource_id, ts, host, None, None, None, None, None, pid if isinstance(pid, int) else 0, "foreign", "", json_of(attributes)


def _spans(group: ResourceSpans, resource_id: str) -> Iterator[Row]:
    for scope in group.scope_spans:
        for span in scope.spans:
            attributes = attributes_of(span.attributes)
            if span.events:
                attributes["events"] = [{"name": e.name, "ts": e.time_unix_nano, **attributes_of(e.attributes)} for e in span.events]
            if span.status.message:
                attributes["status.message"] = span.status.message
            yield (
                span.start_time_unix_nano, max(0, span.end_time_unix_nano - span.start_time_unix_nano),
                span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex() or None, span.name,
                _KINDS[span.kind] if span.kind < len(_KINDS) else "internal", resource_id,
                "error" if span.status.code == Status.STATUS_CODE_ERROR else "ok", json_of(attributes),
            )  # fmt: skip


def _logs(group: Any, resource_id: str) -> Iterator[Row]:
    for scope in group.scope_logs:
        for record in scope.log_records:
            body = value_of(record.body)
            yield (
                record.time_unix_nano or record.observed_time_unix_nano, resource_id, _level(record.severity_number, record.severity_text),
                scope.scope.name, body if isinstance(body, str) else json_of(body), record.trace_id.hex() or None,
                json_of(attributes_of(record.attributes)),
            )  # fmt: skip


def _level(number: int, text: str) -> str:
    """Severity numbers come in fours: 1 TRACE, 5 DEBUG, 9 INFO, 13 WARN, 17 ERROR, 21 FATAL (OTLP logs data model)."""
    if number:
        return _LEVELS[min(5, (number - 1) // 4)]
    text = text.upper()
    return text if text in _LEVELS else {"WARN": "WARNING", "FATAL": "CRITICAL"}.get(text, "INFO")


def _metrics(group: Any, resource_id: str) -> Iterator[Row]:
    for scope in group.scope_metrics:
        for metric in scope.metrics:
            for ts, name, kind, value, count, bounds, buckets, labels in metric_rows(metric, attributes_of):
                yield ts, resource_id, name, kind, value, count, bounds, buckets, json_of(labels)


_SIGNALS: dict[str, tuple[str, str, Callable[[Any, str], Iterator[Row]]]] = {
    "traces": ("resource_spans", "span", _spans),
    "logs": ("resource_logs", "log", _logs),
    "metrics": ("resource_metrics", "metric", _metrics),
}


def _hex_to_base64(content: Any) -> Any:
    """Ids of OTLP/JSON as protobuf's JSON wants them. Attribute names live in {"key": ...} objects, so nothing else has these keys."""
    if isinstance(content, dict):
        return {
            key: base64.b64encode(bytes.fromhex(value)).decode() if key in _IDS and isinstance(value, str) else _hex_to_base64(value)
            for key, value in content.items()
        }
    return [_hex_to_base64(item) for item in content] if isinstance(content, list) else content


def encode_spans(rows: Iterable[dict[str, Any]], resource: Callable[[str], dict[str, Any]] | None = None) -> bytes:
    """Rows of table span as an ExportTraceServiceRequest. `resource` gives the attributes of a resource_id."""
    groups: dict[str, ScopeSpans] = {}
    for row in rows:
        scope = groups.setdefault(row["resource_id"], ScopeSpans())
        attributes = msgspec.json.decode(row["attrs"]) if isinstance(row["attrs"], str) else row["attrs"] or {}
        scope.spans.append(
            Span(
                trace_id=bytes.fromhex(row["trace_id"]), span_id=bytes.fromhex(row["span_id"]),
                parent_span_id=bytes.fromhex(row["parent_id"] or ""), name=row["name"],
                kind=_NUMBERS.get(row["kind"], Span.SPAN_KIND_INTERNAL), start_time_unix_nano=row["ts"],
                end_time_unix_nano=row["ts"] + row["dur"], attributes=_pairs(attributes),
                status=Status(code=Status.STATUS_CODE_OK if row["status"] == "ok" else Status.STATUS_CODE_ERROR),
            )
        )  # fmt: skip
    request = ExportTraceServiceRequest()
    for resource_id, scope in groups.items():
        about = {"service.name": resource_id, **(resource(resource_id) if resource else {})}
        request.resource_spans.append(ResourceSpans(resource=Resource(attributes=_pairs(about)), scope_spans=[scope]))
    return bytes(request.SerializeToString())


def _pairs(attributes: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any(value)) for key, value in attributes.items() if value is not None]


def _any(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[_any(item) for item in value]))
    return AnyValue(string_value=value if isinstance(value, str) else json_of(value))
