"""Failures of other engines by their logs: texts as the engines and torch write them, causes as their threads established them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from playbooks.runner import diagnose
from probes.foreign.log_rows import run_of_logs

CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {ask}. "
    "GPU 0 has a total capacity of 79.11 GiB of which 0.31 GiB is free."
)
LOAD = "INFO Starting to load model /models/moe"
READ = "INFO Loading weights took 96.41 seconds"
LOADED = "INFO Model loading took 61.35 GiB memory and 101.20 seconds"
KV = "INFO GPU KV cache size: 99,152 tokens, Maximum concurrency for 32,768 tokens per request: 3.03x"


def stack(*functions: str) -> list[str]:
    return ["Traceback (most recent call last):", *(f'  File "/x/a.py", line 1, in {name}' for name in functions)]


CASES: dict[str, tuple[str | None, list[str]]] = {
    "vllm-57475": (
        "oom.graph-capture",
        [LOAD, READ, LOADED, KV, "INFO Capturing CUDA graphs", *stack("capture_model"), CUDA.format(ask="64.00 MiB")],
    ),
    "vllm-25597": (
        "oom.comm-buffers",
        [
            LOAD,
            READ,
            LOADED,
            KV,
            "INFO Graph capturing finished in 9 secs, took 0.50 GiB",
            *stack("step", "rearrange", "all_reduce"),
            CUDA.format(ask="6.00 MiB"),
        ],
    ),
    "TensorRT-16125": (
        "oom.repack-peak",
        [LOAD, READ, *stack("load_model", "process_weights_after_loading", "swizzle"), CUDA.format(ask="1.03 GiB")],
    ),
    "vllm-31914": (
        "oom.online-quant-peak",
        [LOAD, READ, *stack("load_model", "process_weights_after_loading", "scaled_fp8_quant"), CUDA.format(ask="1.03 GiB")],
    ),
    "vllm-18550": (
        "oom.mm-profile",
        [LOAD, READ, LOADED, *stack("profile_run", "embed_multimodal", "forward"), CUDA.format(ask="9.00 GiB")],
    ),
    "vllm-45179": (
        "oom.allocator-cache",
        [
            LOAD,
            READ,
            *stack("forward"),
            CUDA.format(ask="1.00 GiB") + " Of the allocated memory 60.00 GiB is allocated by PyTorch, and "
            "5.70 GiB is reserved by PyTorch but unallocated.",
        ],
    ),
    "neighbour": (
        "oom.neighbour-process",
        [
            "ValueError: Free memory on device cuda:0 (61.20/79.11 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 71.20 GiB)."
        ],
    ),
    "weights": ("oom.plan-does-not-fit", [LOAD, *stack("load_model", "create_weights"), CUDA.format(ask="0.88 GiB")]),
    "kv": (
        "oom.kv-no-room",
        [
            LOAD,
            READ,
            LOADED,
            "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is needed, "
            "which is larger than the available KV cache memory (4.00 GiB).",
        ],
    ),
    "sglang-static": (
        "oom.kv-no-room",
        [
            "[x TP0] Load weight begin. avail mem=78.58 GB",
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: self.mem_fraction_static=0.8",
        ],
    ),
    "gpustack-5014": ("oom.shm-exhausted", [LOAD, "OSError: [Errno 28] No space left on device: '/dev/shm/nccl-abc'"]),
    "vllm-56410": ("oom.pinned-rounding", [LOAD, READ, "RuntimeError: cudaHostAlloc failed: out of memory"]),
}


@pytest.mark.parametrize("name", list(CASES))
def test_log_leads_to_its_cause(name: str, tmp_path: Path) -> None:
    expected, lines = CASES[name]
    file = tmp_path / "engine.log"
    file.write_text("\n".join(lines) + "\n")
    found = diagnose(run_of_logs([file], tmp_path / "runs"), "oom-on-load", argv=())
    assert found.findings and found.findings[0].id == expected, [(check.id, check.outcome, check.summary) for check in found.checks]
    assert found.verdict == "problem" and len([one for one in found.findings if one.severity == "error"]) == 1


def test_the_context_that_fits_is_said(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    file.write_text("\n".join(CASES["kv"][1]))
    found = diagnose(run_of_logs([file], tmp_path / "runs"), "oom-on-load", argv=())
    assert "32,768 tokens fits, 131,072 were asked for" in found.findings[0].summary


def test_a_healthy_log_is_not_called_healthy(tmp_path: Path) -> None:
    """A log shows no memory of the host: what was not measured is not healthy."""
    file = tmp_path / "engine.log"
    file.write_text("\n".join([LOAD, READ, LOADED, KV]))
    found = diagnose(run_of_logs([file], tmp_path / "runs"), "oom-on-load", argv=())
    assert found.verdict == "inconclusive" and not found.findings


@pytest.mark.parametrize(("limit", "expected"), [("8GiB", None), ("4MiB", "oom.plan-does-not-fit")])
def test_a_checkpoint_is_judged_before_it_is_loaded(
    limit: str, expected: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    from workbench.cli.main import run

    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    code = run(["diagnose", "oom-on-load", "--model", "shapes", "--limit", limit, "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in document["findings"]] == ([expected] if expected else [])
    assert code == (3 if expected else 5)


def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    from workbench.cli.main import run

    check: Callable[..., int] = run
    assert check(["diagnose", "oom-on-load", "--limit", "1GiB"]) == 2
    assert check(["diagnose", "tail-latency", "--model", "shapes", "--limit", "1GiB"]) == 2
    assert "--limit" in capsys.readouterr().err
