"""Accelerators without a framework: NVIDIA through nvidia-ml-py where it is installed, others by their device nodes."""

from __future__ import annotations

import importlib
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from probes.procfile import read_text
from probes.sampler import Sampler
from probes.sink import Sink
from traces import schema
from traces.errors import WorkbenchError

NODES = {"nvidia": "nvidia[0-9]*", "ascend": "davinci[0-9]*", "moore threads": "mtgpu*", "amd": "kfd", "cambricon": "cambricon_dev*"}
# bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h); an idle or settings-bound clock is no fault
THROTTLE = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal (software)", 0x40: "thermal (hardware)", 0x80: "power brake"}


class NoDeviceReader(WorkbenchError):
    """No library here can read an accelerator's gauges."""


def nvml() -> Any:
    """The initialised `pynvml` module; NoDeviceReader says why there is none."""
    try:
        module = importlib.import_module("pynvml")
    except ImportError as error:
        raise NoDeviceReader("nvidia-ml-py is not installed", "pip install 'workbench-moe[nvidia]' to read NVIDIA devices") from error
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        raise NoDeviceReader(f"NVML does not start: {error}", "no NVIDIA driver is loaded, or it is not visible here") from error
    return module


def inventory() -> dict[str, Any]:
    """Vendor -> number of device nodes, the NVIDIA driver's version, and per NVIDIA device its name, UUID and memory."""
    found: dict[str, Any] = {"nodes": {vendor: len(list(Path("/dev").glob(pattern))) for vendor, pattern in NODES.items()}}
    found["nvidia_driver"] = (read_text("/proc/driver/nvidia/version") or "").split("\n")[0] or None
    try:
        module = nvml()
    except NoDeviceReader as error:
        return found | {"unread": error.message}
    return found | {"gpus": {str(index): _identity(module, index) for index in range(module.nvmlDeviceGetCount())}}


def _identity(module: Any, index: int) -> dict[str, Any]:
    handle = module.nvmlDeviceGetHandleByIndex(index)
    memory = _ask(module, lambda: module.nvmlDeviceGetMemoryInfo(handle).total)
    return {"name": _text(module.nvmlDeviceGetName(handle)), "uuid": _text(module.nvmlDeviceGetUUID(handle)), "memory": memory}


class DeviceSampler(Sampler):
    """Writes one `device` row for each NVIDIA device every `interval` seconds. Raises NoDeviceReader where there is nothing to read.

    `ranks` maps a device's index to the rank that uses it. A gauge that a device does not have is null.
    """

    def __init__(self, recorder: Sink, ranks: dict[int, int] | None = None, interval: float = 1.0) -> None:
        super().__init__("device", interval)
        self._nvml = nvml()
        self._recorder = recorder
        self._ranks = ranks or {}
        self._host = socket.gethostname()
        self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())]

    def sample(self) -> None:
        for index, handle in enumerate(self._handles):
            values = gauges(self._nvml, handle)
            device = f"cuda:{index}"
            self._recorder.row(schema.DEVICE, ts=time.time_ns(), host=self._host, device=device, rank=self._ranks.get(index), **values)


def gauges(module: Any, handle: Any) -> dict[str, Any]:
    """The gauge columns of table `device` for one NVML handle."""
    memory = _ask(module, lambda: module.nvmlDeviceGetMemoryInfo(handle))
    utilisation = _ask(module, lambda: module.nvmlDeviceGetUtilizationRates(handle).gpu)
    power = _ask(module, lambda: module.nvmlDeviceGetPowerUsage(handle))
    clock = _ask(module, lambda: module.nvmlDeviceGetClockInfo(handle, module.NVML_CLOCK_SM))
    temperature = _ask(module, lambda: module.nvmlDeviceGetTemperature(handle, module.NVML_TEMPERATURE_GPU))
    return {
        "utilisation": None if utilisation is None else utilisation / 100,
        "memory_used": None if memory is None else memory.used,
        "memory_total": None if memory is None else memory.total,
        "clock_mhz": None if clock is None else float(clock),
        "power_w": None if power is None else power / 1000,
        "temperature_c": None if temperature is None else float(temperature),
        "throttle": _throttle(module, handle),
        "link": _links(module, handle),
        "errors": _ask(module, lambda: module.nvmlDeviceGetTotalEccErrors(handle, module.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 0)),
    }


def _throttle(module: Any, handle: Any) -> str | None:
    bits = _ask(module, lambda: module.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return None if bits is None else ", ".join(reason for bit, reason in THROTTLE.items() if bits & bit)


def _links(module: Any, handle: Any) -> str | None:
    """`18/18 active`, or None for a device without NVLink."""
    states = [_ask(module, partial(module.nvmlDeviceGetNvLinkState, handle, link)) for link in range(module.NVML_NVLINK_MAX_LINKS)]
    known = [state for state in states if state is not None]
    return f"{sum(known)}/{len(known)} active" if known else None


def _ask(module: Any, question: Callable[[], Any]) -> Any:
    try:
        return question()
    except module.NVMLError:  # not supported by this device, or lost
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
