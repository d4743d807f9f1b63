"""Request spans through the OpenTelemetry SDK: into the recorder, and on request over OTLP to any back end.

About 20 us a span, so only requests and their stages go this way; what happens inside a step is written to the recorder directly.
Times are explicit nanoseconds since the epoch: a stage is reported when it is over, by whoever measured it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from probes.points import ROOT_SPAN
from probes.sink import Sink
from traces import schema

STATUS = "workbench.status"  # set on a cancelled span: OpenTelemetry knows only ok and error
REASON = "workbench.reason"
KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_KIND_NAMES = {kind: name for name, kind in KINDS.items()}

Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpanRef:
    """A span by its ids (32 and 16 hex digits), as another process knows it."""

    trace_id: str
    span_id: str

    @property
    def traceparent(self) -> str:
        """The W3C trace-context header that makes a server's span a child of this one."""
        return f"00-{self.trace_id}-{self.span_id}-01"


class RecorderExporter(SpanExporter):
    """Writes finished spans as rows of table `span`."""

    def __init__(self, recorder: Sink) -> None:
        self._recorder = recorder

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            self._recorder.row(schema.SPAN, **span_row(span))
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is held back here."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def span_row(span: ReadableSpan) -> dict[str, Any]:
    """Columns of table `span`, without `resource_id`. Events of the span, if any, go into attrs as `events`."""
    attributes = dict(span.attributes or {})
    status = attributes.pop(STATUS, "error" if span.status.status_code is StatusCode.ERROR else "ok")
    if span.status.description and REASON not in attributes:
        attributes[REASON] = span.status.description
    if span.events:
        events = [{"name": event.name, "ts": event.timestamp, **(event.attributes or {})} for event in span.events]
        attributes |= {"events": events}
    context, start, end = span.get_span_context(), span.start_time, span.end_time
    if context is None or start is None or end is None:
        raise ValueError(f"span {span.name!r} is not finished")
    return {
        "ts": start,
        "dur": max(0, end - start),
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "parent_id": f"{span.parent.span_id:016x}" if span.parent else None,
        "name": span.name,
        "kind": _KIND_NAMES.get(span.kind, "internal"),
        "status": status,
        "attrs": attributes,
    }


class RequestSpan:
    """An open root span of a request. Attributes whose value is None are left out."""

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self._span = span
        context = span.get_span_context()
        self.ref = SpanRef(f"{context.trace_id:032x}", f"{context.span_id:016x}")

    @property
    def trace_id(self) -> str:
        return self.ref.trace_id

    @property
    def span_id(self) -> str:
        return self.ref.span_id

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(_known(attributes))

    def stage(self, name: str, start: int, end: int, attributes: Attributes | None = None, status: str = "ok") -> SpanRef:
        """A finished child span; see `probes.points.STAGES` for the names."""
        return self._tracing.stage(self.ref, name, start, end, attributes, status)

    def end(self, status: str = "ok", reason: str = "", end: int | None = None) -> None:
        """Close it as ok, error or cancelled. A second call does nothing (the SDK warns)."""
        _close(self._span, status, reason, end)


class Tracing:
    """A tracer provider of its own (the global one is left alone). Every span is kept, whatever the caller's sampling flag says.

    Rows go to the recorder as soon as a span ends, not in batches: the recorder's ring outlives kill -9, a batch in memory does not.
    `otlp_endpoint` (`http://host:4318`) adds a batched OTLP/HTTP export; a back end that does not answer costs spans there, not here.
    """

    def __init__(self, recorder: Sink, otlp_endpoint: str | None = None, service: str = "workbench") -> None:
        resource = Resource({"service.name": service, "service.instance.id": recorder.resource_id})
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource)
        self._provider.add_span_processor(SimpleSpanProcessor(RecorderExporter(recorder)))
        if otlp_endpoint:
            self._provider.add_span_processor(_otlp_processor(otlp_endpoint))
        self._tracer = self._provider.get_tracer("workbench")

    def request_span(
        self,
        name: str = ROOT_SPAN,
        *,
        kind: str = "server",
        start: int | None = None,
        traceparent: str | None = None,
        attributes: Attributes | None = None,
    ) -> RequestSpan:
        """Open the span of a request. With a client's `traceparent` header it joins the client's trace; a malformed one is ignored."""
        # without a parent an empty header keeps the span a root, also when the caller has a current span
        context = TraceContextTextMapPropagator().extract({"traceparent": traceparent or ""}, context=Context())
        span = self._tracer.start_span(name, context, KINDS[kind], _known(attributes), start_time=start)
        return RequestSpan(self, span)

    def stage(self, parent: SpanRef, name: str, start: int, end: int, attributes: Attributes | None = None, status: str = "ok") -> SpanRef:
        """Report a finished child of `parent`, which may live in another process."""
        context = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=TraceFlags(1))
        within = set_span_in_context(NonRecordingSpan(context))
        span = self._tracer.start_span(name, within, SpanKind.INTERNAL, _known(attributes), start_time=start)
        _close(span, status, "", end)
        return SpanRef(parent.trace_id, f"{span.get_span_context().span_id:016x}")

    def close(self) -> None:
        """Send what the OTLP exporter still holds, then stop."""
        self._provider.shutdown()


def _close(span: Span, status: str, reason: str, end: int | None) -> None:
    if status == "error":
        span.set_status(Status(StatusCode.ERROR, reason))
    elif status != "ok":
        span.set_attributes(_known({STATUS: status, REASON: reason or None}))
    span.end(end)


def _known(attributes: Attributes | None) -> dict[str, Any]:
    return {key: value for key, value in (attributes or {}).items() if value is not None}


def _otlp_processor(endpoint: str) -> BatchSpanProcessor:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # requests and protobuf: only when asked for

    url = endpoint.rstrip("/")
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=url if url.endswith("/v1/traces") else f"{url}/v1/traces"))
