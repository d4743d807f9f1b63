"""The memory and loading lines of vLLM's and SGLang's logs, and the texts by which they, torch and the kernel report failures.

Formats: vLLM 0.33 (worker, kv_cache_utils, gpu_model_runner), SGLang 0.5.23 (model_runner), torch's CUDA allocator, Linux mm/oom_kill.c;
see reference/engine_telemetry.md 1.5 and 2.4. Both engines write "GiB" or "GB" and mean 2**30 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["start", "load", "convert", "profile", "kv_cache", "capture", "serve"]
Value = float | int | str
GIB = 1 << 30
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": GIB, "GB": GIB, "MB": 1 << 20, "KB": 1 << 10, "kB": 1 << 10}
_N = r"(-?\d[\d,]*(?:\.\d+)?)"


@dataclass(frozen=True, slots=True)
class Line:
    """What a line of this form says: names of facts for its groups. `bytes.` names are GiB, `seconds.` and `count.` as they are."""

    engine: str
    pattern: re.Pattern[str]
    names: tuple[str, ...]
    phase: Phase | None = None


def _line(engine: str, pattern: str, *names: str, phase: Phase | None = None) -> Line:
    return Line(engine, re.compile(pattern), names, phase)


LINES = (
    _line("vllm", rf"Time spent downloading weights for .*: {_N} seconds", "seconds.download", phase="load"),
    _line("vllm", rf"Loading weights took {_N} seconds", "seconds.read", phase="convert"),
    _line("vllm", rf"Model loading took {_N} (?:GiB|GB) (?:memory )?and {_N} seconds", "bytes.weights", "seconds.load", phase="profile"),
    _line("vllm", r"Starting to load model|Loading safetensors checkpoint shards", phase="load"),
    _line(
        "vllm",
        rf"Total non KV cache memory: {_N}GiB; torch peak memory increase: {_N}GiB; .*weights memory: {_N}GiB",
        "bytes.non_kv",
        "bytes.peak_activation",
        "bytes.weights",
        phase="kv_cache",
    ),
    _line("vllm", rf"Available KV cache memory: {_N} GiB", "bytes.kv_available", phase="kv_cache"),
    _line("vllm", rf"GPU KV cache size: {_N} tokens", "count.kv_tokens", phase="capture"),
    _line("vllm", rf"Maximum concurrency for {_N} tokens per request", "count.max_model_len"),
    _line("vllm", r"Capturing CUDA graph", phase="capture"),
    _line("vllm", rf"Graph capturing finished in {_N} secs, took {_N} GiB", "seconds.capture", "bytes.graph", phase="serve"),
    _line("vllm", rf"init engine .* took {_N} s(?:econds)?(?: \(compilation: {_N} s\))?", "seconds.init", "seconds.compile", phase="serve"),
    _line("vllm", rf"Free memory on device \S* ?\({_N}/{_N} GiB\) on startup", "bytes.device_free", "bytes.device_total"),
    _line("vllm", rf"desired GPU memory utilization \({_N}, {_N} GiB\)", "count.utilization", "bytes.desired"),
    _line(
        "vllm",
        rf"Actual usage is {_N} GiB for consumed memory .*?, {_N} GiB for peak activation, and {_N} GiB for CUDAGraph memory",
        "bytes.consumed",
        "bytes.peak_activation",
        "bytes.graph",
    ),
    _line(
        "vllm",
        rf"max seq len \({_N}\), \(?{_N} GiB KV cache is needed, which is larger than the available KV cache memory \({_N} GiB\)",
        "count.max_model_len",
        "bytes.kv_needed",
        "bytes.kv_available",
    ),
    _line("sglang", rf"Load weight begin\. avail mem={_N} GB", "bytes.device_free", phase="load"),
    _line("sglang", rf"Load weight end\. elapsed={_N} s.*avail mem={_N} GB", "seconds.load", "bytes.free_after_load", phase="kv_cache"),
    _line("sglang", rf"Load weight end\..*mem usage={_N} GB", "bytes.weights"),
    _line("sglang", rf"KV Cache is allocated\..*#tokens: {_N}, K size: {_N} GB, V size: {_N} GB", "count.kv_tokens", "bytes.k", "bytes.v"),
    _line("sglang", rf"KV Cache is allocated\..*#tokens: {_N}, KV size: {_N} GB", "count.kv_tokens", "bytes.kv"),
    _line("sglang", rf"Memory pool end\. avail mem={_N} GB", "bytes.free_after_kv", phase="capture"),
    _line("sglang", r"Capture .*CUDA graph begin", phase="capture"),
    _line("sglang", rf"Capture .*CUDA graph end\..*mem usage={_N} GB", "bytes.graph", phase="serve"),
    _line("sglang", rf"max_total_num_tokens={_N},.*context_len={_N}", "count.kv_tokens", "count.max_model_len", phase="serve"),
    _line("torch", rf"total capacity of {_N} GiB of which", "bytes.device_total"),
    _line("torch", rf"this process has {_N} GiB memory in use", "bytes.process"),
    _line("torch", rf"{_N} GiB is allocated by PyTorch", "bytes.allocated"),
)
SIZED = {
    "requested": re.compile(rf"Tried to allocate {_N} ([KMG]iB|bytes)"),
    "free": re.compile(rf"of which {_N} ([KMG]iB|bytes) is free"),
    "cached": re.compile(rf"{_N} ([KMG]iB|bytes) is reserved by PyTorch but unallocated"),
    "neighbour": re.compile(rf"Process \d+ has {_N} ([KMG]iB|bytes) memory in use"),
    "kernel_anon": re.compile(rf"Killed process.*anon-rss:{_N}(kB)"),
    "kernel_file": re.compile(rf"Killed process.*file-rss:{_N}(kB)"),
    "kernel_shmem": re.compile(rf"Killed process.*shmem-rss:{_N}(kB)"),
}
ERRORS = re.compile(
    r"out of memory|OutOfMemoryError|not enough (?:GPU )?memory|No available memory for the cache blocks"
    r"|KV cache is needed, which is larger|is less than desired GPU memory utilization|Killed process|cudaHostAlloc|page-locked"
    r"|No space left on device|bus error|Cannot allocate memory|can't allocate memory",
    re.IGNORECASE,
)
FRAME = re.compile(r'^\s*File "[^"]*", line \d+, in (\w+)')
PREFIX = re.compile(r"^(?:\((?:\w+) pid=\d+\)\s*)?(?:ERROR|INFO|WARNING|DEBUG)?\s*(?:\d\d-\d\d \d\d:\d\d:\d\d\s*)?(?:\[[^\]]*\]\s*)*")


@dataclass(slots=True)
class EngineLog:
    """`facts` by name, bytes and seconds; `errors` the texts of failures; `phase` the one it was in when the first failed."""

    engine: str = "unknown"
    facts: dict[str, Value] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    phase: Phase = "start"
    frames: list[str] = field(default_factory=list)  # functions on the stack of the first failure, outermost first


def read_engine_log(lines: Iterable[str]) -> EngineLog:
    """What the log says. The first value of a fact stands, of errors all."""
    log = EngineLog()
    phase: Phase = "start"
    frames: list[str] = []
    for text in lines:
        line = text.rstrip("\n")
        if (frame := FRAME.search(PREFIX.sub("", line))) is not None:
            frames.append(frame.group(1))
        elif "Traceback (most recent call last)" in line:
            frames = []
        phase = _facts(line, log, phase)
        if ERRORS.search(line):
            if not log.errors:
                log.phase, log.frames = phase, list(frames)
            log.errors.append(PREFIX.sub("", line).strip()[:500])
    if not log.errors:
        log.phase = phase
    return log


def _facts(line: str, log: EngineLog, phase: Phase) -> Phase:
    for known in LINES:
        found = known.pattern.search(line)
        if found is None:
            continue
        if known.engine != "torch" and log.engine == "unknown":
            log.engine = known.engine
        for name, group in zip(known.names, found.groups(), strict=False):
            if group is not None:
                kind, _, key = name.partition(".")
                log.facts.setdefault(key if kind == "bytes" else f"{key}_seconds" if kind == "seconds" else key, _number(kind, group))
        phase = known.phase or phase
    for key, pattern in SIZED.items():
        if (found := pattern.search(line)) is not None:
            value = int(float(found.group(1).replace(",", "")) * UNITS.get(found.group(2), 1))
            log.facts[key] = int(log.facts.get(key, 0)) + value if key == "neighbour" else log.facts.get(key, value)
    return phase


def _number(kind: str, text: str) -> Value:
    value = float(text.replace(",", "").rstrip("."))
    return int(value * GIB) if kind == "bytes" else value
