"""Runs an operator at the model's shapes on a device, and on the CPU in float64."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from runtime.local import device_fault
from runtime.operators.document import Measured, Status
from runtime.operators.recording import Call, Shape

MOST_BYTES = 1 << 30  # of an operator's operands, in float64
REPEATS = 5
# Relative L2: some hundred roundings of the format. Products of thousands of terms are accumulated in float32 or better.
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-12}
FELL_BACK = ("fall back to run on the CPU", "falls back to run on the CPU", "fallback to cpu", "fall back to cpu")


class Executor:
    """On one device. Operands are seeded and alike on both sides."""

    def __init__(self, device: str) -> None:
        self.device = torch.device("cpu" if device == "PrivateUse1" else device)
        self.named = device
        self.fault = device_fault(self.device)

    def measure(self, call: Call, status: Status) -> Measured:
        """Never raises for what an operator does: a failure is an outcome."""
        shapes = " ".join(map(str, call.shapes()))
        limit = max((LIMITS.get(shape.dtype, 0.0) for shape in call.shapes()), default=0.0)
        reason = self._why_not(call, status)
        if reason:
            return Measured(shapes=shapes, reference="", error=None, limit=limit, seconds=None, cpu_seconds=None, fell_back=None,
                            outcome="skipped", detail=reason)  # fmt: skip
        try:
            args, kwargs = operands(call)
            exact, reference = _reference(call, args, kwargs)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                got, seconds = self._timed(call, args, kwargs, self.device)
            fell = any(phrase in str(one.message).lower() for one in said for phrase in map(str.lower, FELL_BACK))
            cpu_seconds = seconds if self.device.type == "cpu" else self._timed(call, args, kwargs, torch.device("cpu"))[1]
            error = apart(exact, got)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error_:
            detail = f"{type(error_).__name__}: {str(error_).splitlines()[0] if str(error_) else ''}"
            return Measured(shapes=shapes, reference="", error=None, limit=limit, seconds=None, cpu_seconds=None, fell_back=None,
                            outcome="fail", detail=detail)  # fmt: skip
        told = None if self.device.type == "cpu" else fell or status == "fallback"
        outcome = "pass" if error <= limit else "fail"
        return Measured(shapes=shapes, reference=reference, error=error, limit=limit, seconds=seconds, cpu_seconds=cpu_seconds,
                        fell_back=told, outcome=outcome)  # type: ignore[arg-type]  # fmt: skip

    def _why_not(self, call: Call, status: Status) -> str:
        if "empty" in call.op._schema.name:
            return "it allocates: its values mean nothing"
        if self.named == "PrivateUse1":
            return "PrivateUse1 names no device; give the vendor's name for it"
        if self.fault:
            return f"this machine cannot use the device: {self.fault}"
        if status in ("nothing", "unknown"):
            return "the device has nothing that could run it"
        total = 8 * sum(_reach(shape) for shape in call.shapes())
        return f"its operands take {total >> 20} MiB, more than {MOST_BYTES >> 20}" if total > MOST_BYTES else ""

    def _timed(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> tuple[Any, float]:
        """The answer of the first call, and the median of the others: what is compiled or copied at first is not counted."""
        there = _moved(args, kwargs, lambda x: x.to(device))
        wait = _synchroniser(device)
        first = tree_map(lambda x: x.detach().cpu().clone() if isinstance(x, Tensor) else x, call.op(*_fresh(there[0]), **_fresh(there[1])))
        took = []
        for _ in range(REPEATS):
            again = _fresh(there[0]), _fresh(there[1])
            wait()
            began = time.perf_counter()
            call.op(*again[0], **again[1])
            wait()
            took.append(time.perf_counter() - began)
        return first, median(took)


def operands(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Values for the shapes of a call: normal floats, whole numbers that are valid, distinct where they can be, as indices."""
    generator = torch.Generator().manual_seed(0)
    limit = _index_limit(call)

    def made(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if not isinstance(leaf, Shape):
            return leaf
        size = tuple(n if stride else 1 for n, stride in zip(leaf.size, leaf.stride, strict=True))  # what is expanded lies there once
        out = torch.empty_strided(size, leaf.stride, dtype=leaf.dtype)
        if leaf.dtype.is_floating_point:
            return out.copy_(torch.randn(size, generator=generator) * 0.5).expand(leaf.size)
        order = torch.arange(out.numel()).view(size)
        return out.copy_(order % 3 != 0 if leaf.dtype == torch.bool else order % limit).expand(leaf.size)

    args, kwargs = tree_map(made, (call.args, call.kwargs), is_leaf=lambda leaf: isinstance(leaf, Shape))
    if "grouped_mm" in str(call.op):  # ends of groups ascend to the number of rows
        rows, groups = args[0].shape[0], args[2].shape[0]
        args = (*args[:2], (torch.arange(1, groups + 1) * rows // groups).to(args[2].dtype), *args[3:])
    if "solve_triangular" in str(call.op):
        size = args[0].shape[-1]
        args = (args[0].tril(-1) * size**-0.5 + torch.eye(size), *args[1:])
    return args, kwargs


def _index_limit(call: Call) -> int:
    """Whole numbers below it index the call's first tensor along its `dim`, or its rows."""
    shapes = call.shapes()
    names = [argument.name for argument in call.op._schema.arguments]
    dim = call.args[names.index("dim")] if "dim" in names and len(call.args) > names.index("dim") else 0
    size = shapes[0].size
    if not size or not isinstance(dim, int):
        return 1
    return max(1, size[dim])


def _reference(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str]:
    """In float64 on the CPU, or in float32 where an operator has no float64."""
    told = ""
    for dtype in (torch.float64, torch.float32):

        def wider(x: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return x.to(dtype) if x.dtype.is_floating_point else x

        there = _moved(args, kwargs, wider, dtype)
        try:
            return call.op(*_fresh(there[0]), **_fresh(there[1])), f"cpu {str(dtype).removeprefix('torch.')}"
        except (RuntimeError, NotImplementedError) as error:
            told = str(error)
    raise RuntimeError(f"no reference: {told}")


def apart(exact: Any, got: Any) -> float:
    """The largest over the outputs: relative L2 of floats, share of whole numbers that differ; inf where a value is not finite."""
    worst = 0.0
    pairs = zip(tree_flatten(exact)[0], tree_flatten(got)[0], strict=True)
    for a, b in pairs:
        if not isinstance(a, Tensor) or not a.numel():
            continue
        if not a.dtype.is_floating_point:
            worst = max(worst, float((a != b).double().mean()))
            continue
        wide, length = b.double(), float(a.double().nan_to_num().norm())
        if not torch.equal(a.isfinite(), wide.isfinite()):
            return float("inf")
        difference = float((a.double() - wide).nan_to_num(0.0, 0.0, 0.0).norm())
        worst = max(worst, difference / length if length else difference)
    return worst


def _moved(args: Any, kwargs: Any, change: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """Every tensor changed; a float dtype among the arguments becomes `dtype`."""

    def leaf(x: Any) -> Any:
        if isinstance(x, Tensor):
            return change(x)
        return dtype if dtype is not None and isinstance(x, torch.dtype) and x.is_floating_point else x

    moved: tuple[Any, Any] = tree_map(leaf, (args, kwargs))
    return moved


def _fresh(values: Any) -> Any:
    """Copies: an operator may write into what it is given."""
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, values)


def _synchroniser(device: torch.device) -> Callable[[], None]:
    if device.type == "cpu":
        return lambda: None
    synchronise: Callable[[], None] = torch.get_device_module(device).synchronize
    return synchronise


def _reach(shape: Shape) -> int:
    """Values between the first and the last of a strided tensor."""
    return 1 + sum((n - 1) * stride for n, stride in zip(shape.size, shape.stride, strict=True)) if all(shape.size) else 0
