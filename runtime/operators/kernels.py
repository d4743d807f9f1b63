"""Whether a device has a kernel for an operator, what stands in for it, and what to do where nothing does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from runtime.operators.document import Status
from runtime.operators.recording import ATTENTION
from traces.errors import UsageError

PRESENT = "aten::empty.memory_format"  # without it a device cannot hold a tensor
FUSED = {  # kernels that scaled_dot_product_attention may choose (torch 2.13, aten/src/ATen/native/transformers)
    "CPU": ("aten::_scaled_dot_product_flash_attention_for_cpu",),
    "CUDA": (
        "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
    ),
}  # fmt: skip
OVERRIDEABLE = ("aten::_scaled_dot_product_fused_attention_overrideable",)


@dataclass(frozen=True, slots=True)
class Served:
    status: Status
    how: str
    advice: str = ""


def key_of(device: str) -> str:
    """Dispatch key of a device's type: CPU, CUDA, PrivateUse1. UsageError for a type that this torch does not know."""
    if device == "PrivateUse1":
        return device
    try:
        return str(torch._C._dispatch_key_for_device(torch.device(device).type))
    except RuntimeError as error:
        hint = "import of the vendor's torch extension registers it; `PrivateUse1` names any of them"
        raise UsageError(f"torch {torch.__version__} knows no device {device!r}: {str(error).splitlines()[0]}", hint) from None


def served(name: str, op: Any, key: str) -> Served:
    """Who answers `op` on `key`."""
    if not _has(PRESENT, key):
        hint = "run this where the device is, or with its torch extension imported"
        return Served("unknown", f"this torch has no {key} backend", hint)
    if name == ATTENTION:
        return _attention(key)
    if _has(name, key):
        return Served("kernel", key)
    if _has(name, "CompositeExplicitAutogradNonFunctional"):
        variant = _out_variant(op)
        if variant is not None and _has(variant, key):
            return Served("kernel", f"{key}, through {variant}")
    elif _has(name, "CompositeImplicitAutograd") or _has(name, "CompositeExplicitAutograd"):
        return Served("composite", "made of other operators")
    if torch._C._dispatch_has_backend_fallback(_dispatch_key(key)):
        advice = "measure it with --run: what falls back to the CPU copies its operands there and back in every call"
        return Served("fallback", f"the fallback of {key}", advice)
    return Served("nothing", f"no kernel for {key}", advice_for(name, op))


def advice_for(name: str, op: Any) -> str:
    """Composite first, custom kernel after."""
    from torch._decomp import decomposition_table

    if op in decomposition_table:
        return "register torch's decomposition (torch._decomp.decomposition_table) first; a kernel of its own where that is slow"
    return "write it with operators that the device has, as a composite; a kernel of its own where that is slow"


def _attention(key: str) -> Served:
    candidates = FUSED.get(key, OVERRIDEABLE)
    held = [name for name in candidates if _has(name, key)]
    if held:
        return Served("kernel", ", ".join(held))
    advice = f"it is computed as matmul, softmax, matmul; register {candidates[0]} for speed and memory with long contexts"
    return Served("composite", "no fused kernel: matmul, softmax, matmul", advice)


def _out_variant(op: Any) -> str | None:
    """The overload with `out=` that does the work of a structured operator: the one that takes the same arguments otherwise."""
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
    namespace, _, base = op._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base.removesuffix("_"), None)
    for overload in packet.overloads() if packet is not None else ():
        schema = getattr(packet, overload)._schema
        if any(a.is_out for a in schema.arguments) and [(a.name, str(a.type)) for a in schema.arguments if not a.is_out] == wanted:
            return f"{schema.name}.{schema.overload_name}"
    return None


def _has(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def _dispatch_key(key: str) -> Any:
    return torch._C._dispatch_key_parse(key)
