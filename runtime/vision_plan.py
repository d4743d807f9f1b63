"""The weights of the vision towers: their names below the tower's prefix, and their shapes."""

from __future__ import annotations

from runtime.arch import AnyVision, MoonVitSpec, VisionSpec

Shapes = dict[str, tuple[int, ...]]


def vision_shapes(vision: AnyVision) -> Shapes:
    """Name -> shape. Qwen3-VL's as transformers' Qwen3VLMoeVisionModel stores them; MoonViT's as the Kimi models are published."""
    return _moonvit(vision) if isinstance(vision, MoonVitSpec) else _qwen(vision)


def _qwen(vision: VisionSpec) -> Shapes:
    hidden, width = vision.hidden, vision.width
    patch = (hidden, vision.channels, vision.temporal_patch, vision.patch, vision.patch)
    shapes: Shapes = {
        "patch_embed.proj.weight": patch,
        "patch_embed.proj.bias": (hidden,),
        "pos_embed.weight": (vision.grid_side**2, hidden),
    }
    for block in range(vision.depth):
        at = f"blocks.{block}."
        shapes |= _linear(at + "attn.qkv", 3 * hidden, hidden) | _linear(at + "attn.proj", hidden, hidden)
        shapes |= _linear(at + "mlp.linear_fc1", width, hidden) | _linear(at + "mlp.linear_fc2", hidden, width)
        shapes |= _norm(at + "norm1", hidden) | _norm(at + "norm2", hidden)
    shapes |= _merger("merger.", vision, hidden)
    for index in range(len(vision.deepstack)):
        shapes |= _merger(f"deepstack_merger_list.{index}.", vision, hidden * vision.merge**2)
    return shapes


def _merger(at: str, vision: VisionSpec, norm_width: int) -> Shapes:
    """A patch merger: norm, then two linear layers on merge x merge patches side by side."""
    merged = vision.hidden * vision.merge**2
    matrices = _linear(at + "linear_fc1", merged, merged) | _linear(at + "linear_fc2", vision.out_hidden, merged)
    return _norm(at + "norm", norm_width) | matrices


def _moonvit(vision: MoonVitSpec) -> Shapes:
    hidden, bias, merged = vision.hidden, vision.bias, vision.hidden * vision.merge**2
    tower, projector = "vision_tower.", "mm_projector."
    shapes: Shapes = {
        tower + "patch_embed.proj.weight": (hidden, 3, vision.patch, vision.patch),
        tower + "patch_embed.pos_emb.weight": (*vision.grid, hidden),
    }
    if bias:
        shapes[tower + "patch_embed.proj.bias"] = (hidden,)
    for block in range(vision.depth):
        at = f"{tower}encoder.blocks.{block}."
        shapes |= _norm(at + "norm0", hidden, bias) | _norm(at + "norm1", hidden, bias)
        shapes |= _linear(at + "wqkv", 3 * vision.attention, hidden, bias) | _linear(at + "wo", hidden, vision.attention, bias)
        shapes |= _linear(at + "mlp.fc0", vision.width, hidden, bias) | _linear(at + "mlp.fc1", hidden, vision.width, bias)
    shapes |= _norm(tower + "encoder.final_layernorm", hidden, bias)
    shapes |= _linear(projector + "proj.0", merged, merged, bias) | _linear(projector + "proj.2", vision.out_hidden, merged, bias)
    norm, size = ("pre_norm", hidden) if vision.form == "k2.5" else ("post_norm", vision.out_hidden)
    return shapes | _norm(projector + norm, size, bias)


def _linear(name: str, rows: int, columns: int, bias: bool = True) -> Shapes:
    return _with_bias(name, (rows, columns), bias)


def _norm(name: str, size: int, bias: bool = True) -> Shapes:
    return _with_bias(name, (size,), bias)


def _with_bias(name: str, shape: tuple[int, ...], bias: bool) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]} if bias else {f"{name}.weight": shape}
