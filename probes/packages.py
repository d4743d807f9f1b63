"""Versions of the installed packages that decide how a model runs, without importing any of them."""

from __future__ import annotations

from importlib import metadata

OF_INTEREST = (
    *("workbench-moe", "torch", "triton", "numpy", "safetensors", "transformers", "tokenizers", "huggingface-hub", "pillow", "jinja2"),
    *("vllm", "sglang", "tensorrt-llm", "flash-attn", "flashinfer-python", "deep-ep", "deep-gemm", "nixl", "xgrammar", "ray"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nvshmem-cu12", "nvidia-nvshmem-cu13"),
    *("nvidia-ml-py", "torch-npu", "torch-musa", "torch-mlu", "duckdb", "pyarrow", "pandas", "msgspec", "httpx", "starlette", "uvicorn"),
    *("opentelemetry-sdk", "opentelemetry-proto", "py-spy", "psutil", "textual", "plotly", "click", "loguru"),
)


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def versions(names: tuple[str, ...] = OF_INTEREST) -> dict[str, str]:
    """Package -> version, of those that are installed."""
    return {name: found for name in names if (found := version(name)) is not None}
