"""Counters and histograms of the API process in Prometheus' text form, under vLLM's names where the meaning is the same."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# vLLM's bounds (v1/metrics/loggers.py and buckets.py, 0.33.0), continued downwards where a small model on one host lives.
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
ITL = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


@dataclass(slots=True)
class Histogram:
    """Cumulative on output only: `observe` is one bisection and three additions."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    n: int = 0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        self.n += 1


@dataclass(slots=True)
class EngineMetrics:
    """Of one replica, as vLLM labels a data-parallel engine."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0  # prompt tokens
    prefix_hits: int = 0
    success: dict[str, int] = field(default_factory=dict)  # by finished_reason
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT))
    itl: Histogram = field(default_factory=lambda: Histogram(ITL))
    e2e: Histogram = field(default_factory=lambda: Histogram(LATENCY))
    queue: Histogram = field(default_factory=lambda: Histogram(LATENCY))
    prefill: Histogram = field(default_factory=lambda: Histogram(LATENCY))
    decode: Histogram = field(default_factory=lambda: Histogram(LATENCY))
    inference: Histogram = field(default_factory=lambda: Histogram(LATENCY))
    tpot: Histogram = field(default_factory=lambda: Histogram(ITL))
    prompt: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    generation: Histogram = field(default_factory=lambda: Histogram(TOKENS))


    def observe_tokens(self, token_times: list[int], received: int, began: int | None) -> None:
        """Of one answer that has tokens: when each was sampled, when the request came, when a rank took it up (ns; None: not told)."""
        first, last = token_times[0], token_times[-1]
        self.ttft.observe((first - received) / 1e9)
        self.decode.observe((last - first) / 1e9)
        if began is not None:
            self.prefill.observe((first - began) / 1e9)
            self.inference.observe((last - began) / 1e9)
        if len(token_times) > 1:
            self.tpot.observe((last - first) / 1e9 / (len(token_times) - 1))
        for before, after in pairwise(token_times):
            self.itl.observe((after - before) / 1e9)


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a replica last reported."""

    running: int
    waiting: int
    kv_usage: float  # 0..1
    preemptions: int


HELP = {
    "num_requests_running": ("gauge", "Requests in execution."),
    "num_requests_waiting": ("gauge", "Requests waiting to be executed."),
    "kv_cache_usage_perc": ("gauge", "KV-cache usage, 1 is full."),
    "num_preemptions_total": ("counter", "Preemptions so far."),
    "prompt_tokens_total": ("counter", "Prompt tokens processed."),
    "generation_tokens_total": ("counter", "Tokens generated."),
    "prefix_cache_queries_total": ("counter", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits_total": ("counter", "Prompt tokens found in the prefix cache."),
    "request_success_total": ("counter", "Requests that came to their end, by reason."),
    "time_to_first_token_seconds": ("histogram", "From arrival to the first token."),
    "inter_token_latency_seconds": ("histogram", "Between two tokens of a request."),
    "e2e_request_latency_seconds": ("histogram", "From arrival to the end of the answer."),
    "request_queue_time_seconds": ("histogram", "From submission to a rank until it was taken up."),
    "request_prefill_time_seconds": ("histogram", "From being taken up by a rank to the first token."),
    "request_decode_time_seconds": ("histogram", "From the first token to the last."),
    "request_inference_time_seconds": ("histogram", "From being taken up by a rank to the last token."),
    "request_time_per_output_token_seconds": ("histogram", "Mean time between the tokens of a request."),
    "request_prompt_tokens": ("histogram", "Prompt tokens of a request."),
    "request_generation_tokens": ("histogram", "Generated tokens of a request."),
}


class Metrics:
    """Labels model_name and engine (the replica) on everything."""

    def __init__(self, model: str, replicas: int) -> None:
        self._model = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self.engines = [EngineMetrics() for _ in range(replicas)]

    def render(self, gauges: list[Gauges], refused: int) -> str:
        """`refused` requests were answered 429 so far."""
        lines: list[str] = []
        for name, (kind, text) in HELP.items():
            lines += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]
            for number, (engine, gauge) in enumerate(zip(self.engines, gauges, strict=True)):
                lines += self._samples(name, f'model_name="{self._model}",engine="{number}"', engine, gauge)
        lines += ["# HELP vllm:admission_rejections_total Requests refused because the queue was full."]
        lines += ["# TYPE vllm:admission_rejections_total counter"]
        lines += [f'vllm:admission_rejections_total{{model_name="{self._model}",reason="max_num_queued_reqs"}} {refused}', ""]
        return "\n".join(lines)

    def _samples(self, name: str, labels: str, engine: EngineMetrics, gauge: Gauges) -> Iterable[str]:
        if name == "request_success_total":
            return [f'vllm:{name}{{{labels},finished_reason="{reason}"}} {n}' for reason, n in sorted(engine.success.items())]
        value = _value(name, engine, gauge)
        if isinstance(value, Histogram):
            return _histogram(f"vllm:{name}", labels, value)
        return [f"vllm:{name}{{{labels}}} {value}"]


def _value(name: str, engine: EngineMetrics, gauge: Gauges) -> float | Histogram:
    values: dict[str, float | Histogram] = {
        "num_requests_running": gauge.running,
        "num_requests_waiting": gauge.waiting,
        "kv_cache_usage_perc": gauge.kv_usage,
        "num_preemptions_total": gauge.preemptions,
        "prompt_tokens_total": engine.prompt_tokens,
        "generation_tokens_total": engine.generation_tokens,
        "prefix_cache_queries_total": engine.prefix_queries,
        "prefix_cache_hits_total": engine.prefix_hits,
        "time_to_first_token_seconds": engine.ttft,
        "inter_token_latency_seconds": engine.itl,
        "e2e_request_latency_seconds": engine.e2e,
        "request_queue_time_seconds": engine.queue,
        "request_prefill_time_seconds": engine.prefill,
        "request_decode_time_seconds": engine.decode,
        "request_inference_time_seconds": engine.inference,
        "request_time_per_output_token_seconds": engine.tpot,
        "request_prompt_tokens": engine.prompt,
        "request_generation_tokens": engine.generation,
    }
    return values[name]


def _histogram(name: str, labels: str, histogram: Histogram) -> list[str]:
    lines, cumulative = [], 0
    for bound, count in zip([*histogram.bounds, "+Inf"], histogram.counts, strict=True):
        cumulative += count
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {cumulative}')
    return [*lines, f"{name}_sum{{{labels}}} {histogram.total}", f"{name}_count{{{labels}}} {histogram.n}"]
