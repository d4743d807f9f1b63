"""The data points of an OTLP metric as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags, Metric

Point = tuple[int, str, str, float | None, int | None, list[float] | None, list[int] | None, dict[str, Any]]
Attributes = Callable[[Iterable[Any]], dict[str, Any]]


def metric_rows(metric: Metric, attributes: Attributes) -> Iterator[Point]:
    """(ts, name, kind, value, count, bounds, buckets, labels).

    Buckets are cumulative and one more than their upper bounds: the last has none. A sum is a counter when it only grows; delta
    temporality is said in the label otel.temporality.
    """
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    data = getattr(metric, kind)
    delta = getattr(data, "aggregation_temporality", None) == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    for point in data.data_points:
        if point.flags & DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK:
            continue
        labels = attributes(point.attributes)
        if delta:
            labels["otel.temporality"] = "delta"
        yield from _rows(metric.name, kind, data, point, labels)


def _rows(name: str, kind: str, data: Any, point: Any, labels: dict[str, Any]) -> Iterator[Point]:
    ts = point.time_unix_nano
    if kind in ("gauge", "sum"):
        value = float(getattr(point, point.WhichOneof("value") or "as_double"))
        yield ts, name, "counter" if kind == "sum" and data.is_monotonic else "gauge", value, None, None, None, labels
    elif kind == "histogram":
        total = point.sum if point.HasField("sum") else None
        yield ts, name, "histogram", total, point.count, list(point.explicit_bounds), list(accumulate(point.bucket_counts)), labels
    elif kind == "exponential_histogram":
        bounds, counts = _exponential(point)
        total = point.sum if point.HasField("sum") else None
        yield ts, name, "histogram", total, point.count, bounds, list(accumulate(counts)), labels
    else:
        for quantile in point.quantile_values:
            yield ts, name, "gauge", quantile.value, None, None, None, {**labels, "quantile": str(quantile.quantile)}
        yield ts, f"{name}_sum", "counter", point.sum, None, None, None, labels
        yield ts, f"{name}_count", "counter", float(point.count), None, None, None, labels


def _exponential(point: Any) -> tuple[list[float], list[int]]:
    """Explicit bounds of an exponential histogram: bucket i of scale s holds (base^i, base^(i+1)], base = 2^(2^-s) (OTLP data model)."""
    base = 2.0 ** (2.0**-point.scale)
    bounds: list[float] = []
    counts: list[int] = []
    negative, positive = point.negative, point.positive
    for index in reversed(range(len(negative.bucket_counts))):
        bounds.append(-(base ** (negative.offset + index)))
        counts.append(negative.bucket_counts[index])
    bounds.append(point.zero_threshold)
    counts.append(point.zero_count)
    if positive.bucket_counts:
        lowest = base**positive.offset
        if lowest > point.zero_threshold:
            bounds.append(lowest)
            counts.append(0)
        for index, count in enumerate(positive.bucket_counts):
            bounds.append(base ** (positive.offset + index + 1))
            counts.append(count)
    return bounds, [*counts, 0]
