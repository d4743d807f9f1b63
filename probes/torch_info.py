"""What torch says about itself. Imports torch: only for a process that has it loaded anyway, or when asked for."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed


def torch_facts() -> dict[str, Any]:
    """Version, build, threads, back ends of torch.distributed and the devices of the accelerator, if there is one."""
    found: dict[str, Any] = {
        "version": str(torch.__version__),  # a TorchVersion is no plain str to msgspec
        "git": torch.version.git_version,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "mkldnn": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "backends": distributed_backends(),
        "devices": {},
    }
    accelerator = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    if accelerator is not None and torch.accelerator.is_available():
        found["accelerator"] = accelerator.type
        found["devices"] = {str(index): _device(accelerator.type, index) for index in range(torch.accelerator.device_count())}
    return found


def distributed_backends() -> list[str]:
    if not torch.distributed.is_available():
        return []
    checks = {
        "gloo": torch.distributed.is_gloo_available,
        "nccl": torch.distributed.is_nccl_available,
        "mpi": torch.distributed.is_mpi_available,
        "ucc": torch.distributed.is_ucc_available,
    }
    return [name for name, available in checks.items() if available()]


def _device(kind: str, index: int) -> dict[str, Any]:
    module = torch.get_device_module(kind)
    properties = module.get_device_properties(index)
    return {"name": getattr(properties, "name", None), "memory": getattr(properties, "total_memory", None)}
