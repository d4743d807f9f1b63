"""OTLP as the OpenTelemetry SDK and the specification's own examples send it."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2 as m
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode

from traces import otlp
from traces.collector.otlp_endpoint import OtlpEndpoint
from traces.run import Run
from traces.store import open_run

RESOURCE = Resource({"service.name": "vllm", "service.instance.id": "i-1", "host.name": "node7", "process.pid": 4242})


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_spans_of_the_sdk(run: Run, served: Any, compression: Compression) -> None:
    exporter = OTLPSpanExporter(f"{served.address.url}/v1/traces", compression=compression)
    provider = TracerProvider(resource=RESOURCE)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("engine")
    with tracer.start_as_current_span("llm_request", kind=SpanKind.SERVER, start_time=1_000) as root:
        root.set_attributes({"gen_ai.usage.input_tokens": 12, "ids": [1, 2], "share": 0.5, "cached": True, "text": "é"})
        with tracer.start_as_current_span("prefill") as child:
            child.set_status(Status(StatusCode.ERROR, "boom"))
            child.add_event("retry", {"n": 1}, timestamp=77)
        child_id, root_id = child.get_span_context().span_id, root.get_span_context().span_id
    provider.shutdown()
    with open_run(run) as store:
        prefill, request = store.rows("SELECT * FROM span ORDER BY name DESC")
        (resource,) = store.rows("SELECT * FROM resource")
    seen = (request["name"], request["kind"], request["ts"], request["status"], request["parent_id"])
    assert seen == ("llm_request", "server", 1000, "ok", None)
    assert json.loads(request["attrs"]) == {"gen_ai.usage.input_tokens": 12, "ids": [1, 2], "share": 0.5, "cached": True, "text": "é"}
    assert request["trace_id"] == f"{root.get_span_context().trace_id:032x}" and request["span_id"] == f"{root_id:016x}"
    assert (prefill["parent_id"], prefill["span_id"], prefill["kind"]) == (f"{root_id:016x}", f"{child_id:016x}", "internal")
    assert prefill["status"] == "error" and prefill["dur"] > 0
    assert json.loads(prefill["attrs"]) == {"events": [{"name": "retry", "ts": 77, "n": 1}], "status.message": "boom"}
    assert (resource["resource_id"], resource["host"], resource["pid"], resource["role"]) == ("vllm/i-1", "node7", 4242, "foreign")
    assert request["resource_id"] == "vllm/i-1"


def test_metrics_of_the_sdk(run: Run, served: Any) -> None:
    exporter = OTLPMetricExporter(f"{served.address.url}/v1/metrics")
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)], RESOURCE)
    meter = provider.get_meter("engine")
    meter.create_counter("tokens").add(5, {"model": "k3"})
    meter.create_up_down_counter("running").add(-2)
    histogram = meter.create_histogram("ttft", explicit_bucket_boundaries_advisory=[0.1, 1.0])
    for value in (0.05, 0.5, 0.6, 9.0):
        histogram.record(value)
    provider.shutdown()
    with open_run(run) as store:
        rows = {row["name"]: row for row in store.rows("SELECT * FROM metric")}
    assert (rows["tokens"]["kind"], rows["tokens"]["value"], json.loads(rows["tokens"]["labels"])) == ("counter", 5.0, {"model": "k3"})
    assert (rows["running"]["kind"], rows["running"]["value"]) == ("gauge", -2.0)
    ttft = rows["ttft"]
    # One value up to 0.1, three up to 1.0, all four without a bound; the sum is 10.15.
    assert (ttft["kind"], ttft["count"], ttft["bounds"], ttft["buckets"]) == ("histogram", 4, [0.1, 1.0], [1, 3, 4])
    assert ttft["value"] == pytest.approx(10.15)
    assert {row["resource_id"] for row in rows.values()} == {"vllm/i-1"}


# From opentelemetry-proto, examples/trace.json and examples/logs.json (v1.5): ids are hex, 64-bit integers are strings.
TRACE_JSON = """{"resourceSpans": [{"resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "my.service"}}]},
 "scopeSpans": [{"scope": {"name": "my.library", "version": "1.0.0"}, "spans": [
  {"traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174", "parentSpanId": "EEE19B7EC3C1B173",
   "name": "I'm a server span", "startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": "1544712661000000000", "kind": 2,
   "attributes": [{"key": "my.span.attr", "value": {"stringValue": "some value"}}, {"key": "n", "value": {"intValue": "7"}}]}]}]}]}"""
LOGS_JSON = """{"resourceLogs": [{"resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "my.service"}}]},
 "scopeLogs": [{"scope": {"name": "my.library"}, "logRecords": [
  {"timeUnixNano": "1544712660300000000", "observedTimeUnixNano": "1544712660300000000", "severityNumber": 10,
   "severityText": "Information", "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174",
   "body": {"stringValue": "Example log record"},
   "attributes": [{"key": "map", "value": {"kvlistValue": {"values": [{"key": "some.map.key", "value": {"stringValue": "v"}}]}}}]},
  {"observedTimeUnixNano": "5", "severityText": "warn", "body": {"kvlistValue": {"values": [{"key": "a", "value": {"boolValue": true}}]}}},
  {"timeUnixNano": "6", "severityNumber": 17, "body": {}}]}]}]}"""


def test_the_examples_of_the_specification(run: Run, served: Any, client: httpx.Client) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    answer = client.post("/v1/traces", content=TRACE_JSON, headers=headers)
    assert (answer.status_code, answer.json(), answer.headers["content-type"]) == (200, {}, "application/json")
    packed = client.post("/v1/logs", content=gzip.compress(LOGS_JSON.encode()), headers={**headers, "Content-Encoding": "gzip"})
    assert packed.status_code == 200
    with open_run(run) as store:
        (span,) = store.rows("SELECT * FROM span")
        logs = store.rows("SELECT * FROM log ORDER BY ts")
        assert store.rows("SELECT count(*) AS n FROM resource") == [{"n": 1}]
    assert (span["trace_id"], span["span_id"], span["parent_id"]) == (
        "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174", "eee19b7ec3c1b173",
    )  # fmt: skip
    assert (span["ts"], span["dur"], span["kind"]) == (1544712660000000000, 1_000_000_000, "server")
    assert json.loads(span["attrs"]) == {"my.span.attr": "some value", "n": 7}
    observed, error, example = logs
    assert (example["level"], example["logger"], example["message"]) == ("INFO", "my.library", "Example log record")
    assert example["trace_id"] == span["trace_id"] and json.loads(example["attrs"]) == {"map": {"some.map.key": "v"}}
    assert (observed["ts"], observed["level"], observed["message"]) == (5, "WARNING", '{"a":true}')
    assert (error["level"], error["message"]) == ("ERROR", "null")


def test_what_is_not_otlp_is_refused(client: httpx.Client) -> None:
    protobuf, as_json = {"Content-Type": "application/x-protobuf"}, {"Content-Type": "application/json"}
    for path in ("/v1/traces", "/v1/logs", "/v1/metrics"):
        assert client.post(path, content=b"\xff\xff\xff", headers=protobuf).status_code == 400
        for body in (b"{", b"[]", b'{"resourceSpans": 5, "resourceLogs": 5, "resourceMetrics": 5}'):
            assert client.post(path, content=body, headers=as_json).status_code == 400
        assert client.post(path, content=b"", headers={"Content-Type": "text/plain"}).status_code == 415
        assert client.post(path, content=b"", headers=protobuf).status_code == 200
    bad_id = b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}'
    assert client.post("/v1/traces", content=bad_id, headers=as_json).status_code == 400


def test_otlp_is_open_on_loopback_alone(served: Any, client: httpx.Client) -> None:
    from traces.collector.app import Collector

    del client.headers["Authorization"]
    assert client.post("/v1/traces", content=b"", headers={"Content-Type": "application/x-protobuf"}).status_code == 200
    assert Collector(served.writer, "t", loopback=True)._open == {"/healthz", "/v1/traces", "/v1/logs", "/v1/metrics"}
    assert Collector(served.writer, "t", loopback=False)._open == {"/healthz"}


def test_exponential_histograms_and_summaries() -> None:
    # Scale 0: base 2. Offset 1: buckets (2, 4] and (4, 8] with 3 and 1; two zeros; one in [-2, -1) (negative, offset 0).
    exponential = m.ExponentialHistogramDataPoint(
        time_unix_nano=9, count=7, sum=12.5, scale=0, zero_count=2,
        positive=m.ExponentialHistogramDataPoint.Buckets(offset=1, bucket_counts=[3, 1]),
        negative=m.ExponentialHistogramDataPoint.Buckets(offset=0, bucket_counts=[1]),
    )  # fmt: skip
    median = m.SummaryDataPoint.ValueAtQuantile(quantile=0.5, value=2.0)
    summary = m.SummaryDataPoint(time_unix_nano=9, count=4, sum=8.0, quantile_values=[median])
    nothing = m.NumberDataPoint(time_unix_nano=9, flags=1)
    metrics = [
        m.Metric(name="e", exponential_histogram=m.ExponentialHistogram(data_points=[exponential], aggregation_temporality=1)),
        m.Metric(name="s", summary=m.Summary(data_points=[summary])),
        m.Metric(name="none", gauge=m.Gauge(data_points=[nothing])),
    ]
    request = ExportMetricsServiceRequest(resource_metrics=[m.ResourceMetrics(scope_metrics=[m.ScopeMetrics(metrics=metrics)])])
    rows = OtlpEndpoint().rows("metrics", "application/x-protobuf", request.SerializeToString()).tables["metric"].to_pylist()
    found = {row["name"]: row for row in rows}
    assert set(found) == {"e", "s", "s_sum", "s_count"}
    # Upper bounds: -1, 0 (the zeros), 2 (nothing between 0 and 2), 4, 8, and all.
    assert (found["e"]["bounds"], found["e"]["buckets"]) == ([-1.0, 0.0, 2.0, 4.0, 8.0], [1, 3, 3, 6, 7, 7])
    assert json.loads(found["e"]["labels"]) == {"otel.temporality": "delta"}
    assert (found["s"]["value"], json.loads(found["s"]["labels"])) == (2.0, {"quantile": "0.5"})
    assert (found["s_sum"]["value"], found["s_count"]["value"]) == (8.0, 4.0)
    assert rows[0]["resource_id"] == "unknown"


def test_spans_go_out_as_they_came_in() -> None:
    message = otlp.parse("traces", TRACE_JSON.encode(), True)
    rows = otlp.decode("traces", message, set()).tables["span"].to_pylist()
    out = ExportTraceServiceRequest.FromString(otlp.encode_spans(rows, lambda resource_id: {"host.name": "node7"}))
    (group,) = out.resource_spans
    assert otlp.attributes_of(group.resource.attributes) == {"service.name": "my.service", "host.name": "node7"}
    (span,), original = group.scope_spans[0].spans, message.resource_spans[0].scope_spans[0].spans[0]
    for name in ("trace_id", "span_id", "parent_span_id", "name", "kind", "start_time_unix_nano", "end_time_unix_nano"):
        assert getattr(span, name) == getattr(original, name)
    assert otlp.attributes_of(span.attributes) == otlp.attributes_of(original.attributes)
    attrs = {"list": [1, "a"], "map": {"x": 1.5}, "none": None, "flag": True}
    failed = {**rows[0], "status": "cancelled", "attrs": attrs, "parent_id": None}
    (again,) = ExportTraceServiceRequest.FromString(otlp.encode_spans([failed])).resource_spans[0].scope_spans[0].spans
    assert again.status.code == 2 and again.parent_span_id == b""
    assert otlp.attributes_of(again.attributes) == {"list": [1, "a"], "map": '{"x":1.5}', "flag": True}
