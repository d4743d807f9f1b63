"""The memory lines of vLLM and SGLang, in the formats of their sources; the texts of torch, of the engines and of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.foreign.engine_log import read_engine_log
from probes.foreign.log_rows import run_of_logs
from traces.errors import UsageError
from traces.store import open_run

GIB = 1 << 30
VLLM = """\
(EngineCore_0 pid=71) INFO 11-29 10:00:01 [gpu_model_runner.py:2300] Starting to load model /models/moe...
(EngineCore_0 pid=71) INFO 11-29 10:01:40 [default_loader.py:262] Loading weights took 96.41 seconds
(EngineCore_0 pid=71) INFO 11-29 10:01:43 [gpu_model_runner.py:2331] Model loading took 61.35 GiB memory and 101.204716 seconds
(EngineCore_0 pid=71) INFO 11-29 10:02:10 [gpu_worker.py:298] Available KV cache memory: 6.81 GiB
(EngineCore_0 pid=71) INFO 11-29 10:02:10 [kv_cache_utils.py:1087] GPU KV cache size: 99,152 tokens, Maximum concurrency for 32,768 \
tokens per request: 3.03x
(EngineCore_0 pid=71) INFO 11-29 10:02:41 [gpu_model_runner.py:2841] Graph capturing finished in 29 secs, took 1.27 GiB
(EngineCore_0 pid=71) INFO 11-29 10:02:41 [core.py:218] init engine (profile, create kv cache, warmup model) took 57.90 s \
(compilation: 18.22 s)
"""
SGLANG = """\
[2026-11-29 10:00:00 TP0] Load weight begin. avail mem=78.58 GB
[2026-11-29 10:03:10 TP0] Load weight end. elapsed=190.12 s, type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, \
avail mem=14.30 GB, mem usage=64.28 GB.
[2026-11-29 10:03:11 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 120400, KV size: 8.07 GB
[2026-11-29 10:03:12 TP0] Memory pool end. avail mem=5.90 GB
[2026-11-29 10:03:40 TP0] Capture decode CUDA graph end. Time elapsed: 27.8 s. mem usage=2.03 GB, avail mem=3.87 GB.
[2026-11-29 10:03:41 TP0] max_total_num_tokens=120400, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, \
context_len=163840, available_gpu_mem=3.87 GB
"""


def test_a_healthy_start_of_vllm() -> None:
    log = read_engine_log(VLLM.splitlines())
    assert log.engine == "vllm" and not log.errors and log.phase == "serve"
    assert log.facts["weights"] == pytest.approx(61.35 * GIB, abs=1)
    assert log.facts["kv_available"] == pytest.approx(6.81 * GIB, abs=1)
    assert log.facts["graph"] == pytest.approx(1.27 * GIB, abs=1)
    assert (log.facts["read_seconds"], log.facts["load_seconds"], log.facts["capture_seconds"]) == (96.41, 101.204716, 29.0)
    assert (log.facts["init_seconds"], log.facts["compile_seconds"]) == (57.90, 18.22)
    assert (log.facts["kv_tokens"], log.facts["max_model_len"]) == (99152.0, 32768.0)


def test_a_healthy_start_of_sglang() -> None:
    log = read_engine_log(SGLANG.splitlines())
    assert log.engine == "sglang" and not log.errors and log.phase == "serve"
    assert log.facts["weights"] == pytest.approx(64.28 * GIB, abs=1)
    assert log.facts["device_free"] == pytest.approx(78.58 * GIB, abs=1)
    assert log.facts["load_seconds"] == 190.12 and log.facts["kv_tokens"] == 120400.0
    assert log.facts["graph"] == pytest.approx(2.03 * GIB, abs=1)


def test_an_allocation_that_failed_with_its_numbers() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
        "512.00 MiB is free. Process 4711 has 3.25 GiB memory in use. Including non-PyTorch memory, this process has 75.30 GiB memory "
        "in use. Of the allocated memory 68.00 GiB is allocated by PyTorch, and 6.10 GiB is reserved by PyTorch but unallocated."
    )
    facts = read_engine_log([text]).facts
    assert facts["requested"] == 2 * GIB and facts["free"] == 512 << 20 and facts["neighbour"] == int(3.25 * GIB)
    assert facts["cached"] == int(6.10 * GIB) and facts["device_total"] == int(79.11 * GIB)


def test_the_kernel_speaks_for_those_that_cannot() -> None:
    text = (
        "[ 9012.34] Memory cgroup out of memory: Killed process 812 (wb-rank0) total-vm:9126412kB, anon-rss:402344kB, file-rss:901232kB, "
        "shmem-rss:0kB, UID:0 pgtables:3012kB oom_score_adj:0"
    )
    log = read_engine_log([text])
    assert log.errors and (log.facts["kernel_anon"], log.facts["kernel_file"]) == (402344 << 10, 901232 << 10)


def test_the_first_failure_keeps_its_phase_and_stack() -> None:
    lines = [
        "INFO Starting to load model x",
        "INFO Loading weights took 9.00 seconds",
        "ERROR Traceback (most recent call last):",
        '  File "/x/vllm/v1/worker/gpu_model_runner.py", line 1, in load_model',
        '  File "/x/quantization/mxfp4.py", line 2, in process_weights_after_loading',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.03 GiB.",
        "INFO Available KV cache memory: 1.00 GiB",
    ]
    log = read_engine_log(lines)
    assert log.phase == "convert" and log.frames == ["load_model", "process_weights_after_loading"]


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_text("hello\n")
    with pytest.raises(UsageError, match="no line"):
        run_of_logs([file], tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        run_of_logs([tmp_path / "absent"], tmp_path)


def test_a_log_becomes_a_run(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_text(VLLM)
    run = run_of_logs([file], tmp_path / "runs")
    with open_run(run) as store:
        (row,) = store.rows("SELECT kind, attrs FROM event")
    assert run.info.engine == "vllm" and row["kind"] == "engine_fact"
