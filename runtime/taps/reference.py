"""The same taps from transformers, where it is installed: forward hooks, modules named by the structure that its MoE models share."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from runtime.taps.capture import Capture, by_expert
from runtime.taps.faint import OF_NORM, faint_gain
from traces.errors import UsageError


def transformers_model(path: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """A causal model of a local folder, in eval mode on the CPU; no code of the checkpoint is run. UsageError where there is none."""
    if find_spec("transformers") is None:
        raise UsageError("transformers is not installed", "install it beside workbench, or record taps elsewhere and give --against FILE")
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the answer may be read by a machine, the terminal by a person
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    kinds = [transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText]
    told = ""
    for kind in kinds:
        try:
            model, info = kind.from_pretrained(
                str(path), dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True, output_loading_info=True
            )
        except (ValueError, KeyError, OSError, ImportError, RuntimeError) as error:
            told = told or f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            continue
        if info["missing_keys"]:  # it would answer with random values there
            names = ", ".join(sorted(info["missing_keys"])[:3])
            raise UsageError(f"transformers finds no values for {names} in {path}", "verify the checkpoint; such a model is no reference")
        return model.eval()
    raise UsageError(f"transformers {transformers.__version__} cannot load {path}: {told}", "record taps elsewhere and give --against FILE")


def record_reference(model: Any, ids: list[int], name: str = "") -> Capture:
    """One uncached forward pass of a transformers model over a prompt. UsageError for a model without decoder layers."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and name.endswith("layers")}
    found = [module for name, module in lists.items() if "vis" not in name]
    if not found:
        raise UsageError(f"{type(model).__name__} has no list of layers", "record taps elsewhere and give --against FILE")
    layers = found[0]
    taps: dict[str, Tensor] = {}
    hooks = [*_outer_hooks(model, layers, taps)]
    for i, layer in enumerate(layers):
        hooks += _layer_hooks(layer, f"layers.{i}.", taps)
    try:
        with torch.no_grad():
            out = model(input_ids=torch.tensor([ids]), use_cache=True)
    finally:
        for hook in hooks:
            hook.remove()
    taps["logits"] = out.logits[0].float() if out.logits.dtype == torch.float64 else out.logits[0]
    _keys(getattr(out, "past_key_values", None), len(ids), taps)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    import transformers

    facts = {
        "source": f"transformers {transformers.__version__}",
        "model": name,
        "architecture": type(model).__name__,
        "dtype": dtype,
        "device": str(next(model.parameters()).device),
    }
    return Capture(list(ids), {key: value.detach().cpu().clone() for key, value in taps.items()}, facts)


def _outer_hooks(model: Any, layers: nn.ModuleList, taps: dict[str, Tensor]) -> list[Any]:
    decoder = next(module for module in model.modules() if any(child is layers for child in module.children()))
    hooks = [model.get_input_embeddings().register_forward_hook(_keep(taps, "embed"))]
    if isinstance(getattr(decoder, "norm", None), nn.Module):
        hooks += _norm_hooks(decoder.norm, "norm", taps)
    return hooks


def _layer_hooks(layer: nn.Module, at: str, taps: dict[str, Tensor]) -> list[Any]:
    children = dict(layer.named_children())
    hooks = [layer.register_forward_hook(_keep(taps, at + "output"))]
    for name, tap in (("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm")):
        if name in children:
            hooks += _norm_hooks(children[name], at + tap, taps)
    for name in ("self_attn", "linear_attn", "attention"):
        if name in children:
            hooks.append(children[name].register_forward_hook(_keep(taps, at + "attention")))
            keys = dict(children[name].named_children())
            source = keys.get("k_norm", keys.get("k_proj"))
            if source is not None and "q_a_proj" not in keys and name == "self_attn" and not any("conv" in key for key in keys):
                hooks.append(source.register_forward_hook(_keep(taps, at + "key_before_rope")))
    for name in ("mlp", "block_sparse_moe"):
        if name in children:
            hooks.append(children[name].register_forward_hook(_keep(taps, at + "ffn")))
            hooks += _mixture_hooks(children[name], at, taps)
    return hooks


def _norm_hooks(norm: nn.Module, name: str, taps: dict[str, Tensor]) -> list[Any]:
    def faint(module: nn.Module, inputs: Any, output: Any) -> None:
        taps[name + OF_NORM] = faint_gain(module.forward, output.detach().flatten(0, -2)).clone()  # forward: no hook is called again

    return [norm.register_forward_hook(_keep(taps, name)), norm.register_forward_hook(faint)]


def _mixture_hooks(mixture: nn.Module, at: str, taps: dict[str, Tensor]) -> list[Any]:
    children, hooks = dict(mixture.named_children()), []
    router = children.get("router", children.get("gate"))
    if "experts" in children:
        hooks.append(children["experts"].register_forward_hook(_keep(taps, at + "routed")))
        if router is not None:
            hooks.append(router.register_forward_hook(_route(taps, at)))
    shared = [children[name] for name in ("shared_experts", "shared_expert") if name in children]
    return hooks + [module.register_forward_hook(_keep(taps, at + "shared")) for module in shared]


def _keep(taps: dict[str, Tensor], name: str) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        value = output[0] if isinstance(output, tuple) else output
        value = value.detach()
        value = value[0] if value.dim() > 2 and value.shape[0] == 1 else value  # the batch of one
        taps[name] = value.flatten(1).clone()

    return hook


def _route(taps: dict[str, Tensor], at: str) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        if not isinstance(output, tuple) or len(output) != 3:
            return  # a router of another shape: its taps are missing, and said to be
        logits, weights, experts = output
        taps[at + "router.logits"] = logits.detach().flatten(0, -2).float().clone()
        taps[at + "router.experts"], taps[at + "router.weights"] = by_expert(experts.detach(), weights.detach())

    return hook


def _keys(cache: Any, count: int, taps: dict[str, Tensor]) -> None:
    """Keys [1, kv_heads, T, D] and values of layers that kept all of them: a sliding window forgets, latent attention has other rows."""
    for i, layer in enumerate(getattr(cache, "layers", [])):
        key, value = getattr(layer, "keys", None), getattr(layer, "values", None)
        if f"layers.{i}.key_before_rope" not in taps or not isinstance(key, Tensor) or not isinstance(value, Tensor):
            continue
        if key.dim() == 4 and key.shape[2] == count:
            taps[f"layers.{i}.key"] = key[0].transpose(0, 1).flatten(1)
            taps[f"layers.{i}.value"] = value[0].transpose(0, 1).flatten(1)
