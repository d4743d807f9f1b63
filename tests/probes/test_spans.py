import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.trace import get_current_span

from probes.spans import SpanRef, Tracing
from traces import schema

START = 1_796_000_000_000_000_000


def test_a_request_and_its_stages_become_rows(rows):
    tracing = Tracing(rows)
    request = tracing.request_span(start=START, attributes={"gen_ai.request.model": "shapes", "moe.rank": 2, "absent": None})
    request.stage("prefill", START + 10, START + 40, {"moe.tokens": 64})
    request.set({"gen_ai.usage.output_tokens": 9})
    request.end(end=START + 100)
    tracing.close()
    stage, root = rows.of(schema.SPAN)
    assert (root["ts"], root["dur"], root["name"], root["kind"], root["status"]) == (START, 100, "request", "server", "ok")
    assert root["parent_id"] is None
    assert root["attrs"] == {"gen_ai.request.model": "shapes", "moe.rank": 2, "gen_ai.usage.output_tokens": 9}
    assert (stage["ts"], stage["dur"], stage["name"], stage["kind"]) == (START + 10, 30, "prefill", "internal")
    assert (stage["trace_id"], stage["parent_id"]) == (root["trace_id"], root["span_id"])
    assert (len(root["trace_id"]), len(root["span_id"])) == (32, 16) and int(root["trace_id"], 16) and int(root["span_id"], 16)


def test_a_row_is_there_as_soon_as_the_span_ends(rows):
    request = Tracing(rows).request_span()
    assert rows.of(schema.SPAN) == []
    request.end()
    assert abs(rows.of(schema.SPAN)[0]["ts"] - time.time_ns()) < 60e9


@pytest.mark.parametrize(("status", "reason"), [("error", "server said 500"), ("cancelled", "client went away")])
def test_how_a_request_ended(rows, status, reason):
    request = Tracing(rows).request_span()
    request.end(status, reason)
    (row,) = rows.of(schema.SPAN)
    assert row["status"] == status
    assert row["attrs"] == {"workbench.reason": reason}


def test_client_and_server_share_a_trace_through_the_w3c_header(rows):
    tracing = Tracing(rows)
    client = tracing.request_span("client.request", kind="client")
    server = tracing.request_span(traceparent=client.ref.traceparent)
    server.end()
    client.end()
    inner, outer = rows.of(schema.SPAN)
    assert inner["trace_id"] == outer["trace_id"]
    assert inner["parent_id"] == outer["span_id"]
    assert outer["kind"] == "client" and outer["parent_id"] is None


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{'0' * 16}-01"])
def test_a_malformed_header_starts_a_new_trace(rows, header):
    Tracing(rows).request_span(traceparent=header).end()
    (row,) = rows.of(schema.SPAN)
    assert row["parent_id"] is None and int(row["trace_id"], 16)


def test_an_unsampled_caller_is_recorded_all_the_same(rows):
    Tracing(rows).request_span(traceparent=f"00-{'a' * 32}-{'b' * 16}-00").end()
    assert rows.of(schema.SPAN)[0]["trace_id"] == "a" * 32


def test_a_stage_may_be_reported_by_another_process(rows):
    parent = SpanRef("c" * 32, "d" * 16)
    own = Tracing(rows).stage(parent, "queue", START, START + 5)
    (row,) = rows.of(schema.SPAN)
    assert (row["trace_id"], row["parent_id"], row["span_id"]) == (parent.trace_id, parent.span_id, own.span_id)


def test_the_global_tracer_is_left_alone(rows):
    Tracing(rows).request_span()
    assert not get_current_span().get_span_context().is_valid


@pytest.fixture
def otlp_backend():
    """A real HTTP server that speaks OTLP: the far side of the export."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", received
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_otlp_export_carries_the_same_span(rows, otlp_backend, path):
    url, received = otlp_backend
    tracing = Tracing(rows, otlp_endpoint=url + path, service="api")
    tracing.request_span(start=START, attributes={"moe.rank": 1}).end(end=START + 7)
    tracing.close()
    ((where, message),) = received
    (resource_spans,) = message.resource_spans
    (span,) = resource_spans.scope_spans[0].spans
    (row,) = rows.of(schema.SPAN)
    assert where == "/v1/traces"
    assert (span.trace_id.hex(), span.span_id.hex(), span.name) == (row["trace_id"], row["span_id"], "request")
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (START, START + 7)
    assert {"service.name": "api", "service.instance.id": "test"}.items() <= {
        entry.key: entry.value.string_value for entry in resource_spans.resource.attributes
    }.items()
