"""The weights of the vision tower: their names below the tower's prefix, and their shapes."""

from __future__ import annotations

from runtime.arch import VisionSpec


def vision_shapes(vision: VisionSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape, as transformers' Qwen3VLMoeVisionModel stores them."""
    hidden, width = vision.hidden, vision.width
    patch = (hidden, vision.channels, vision.temporal_patch, vision.patch, vision.patch)
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": patch,
        "patch_embed.proj.bias": (hidden,),
        "pos_embed.weight": (vision.grid_side**2, hidden),
    }
    for block in range(vision.depth):
        at = f"blocks.{block}."
        shapes |= _linear(at + "attn.qkv", 3 * hidden, hidden) | _linear(at + "attn.proj", hidden, hidden)
        shapes |= _linear(at + "mlp.linear_fc1", width, hidden) | _linear(at + "mlp.linear_fc2", hidden, width)
        for norm in ("norm1", "norm2"):
            shapes |= {f"{at}{norm}.weight": (hidden,), f"{at}{norm}.bias": (hidden,)}
    shapes |= _merger("merger.", vision, hidden)
    for index in range(len(vision.deepstack)):
        shapes |= _merger(f"deepstack_merger_list.{index}.", vision, hidden * vision.merge**2)
    return shapes


def _linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _merger(at: str, vision: VisionSpec, norm_width: int) -> dict[str, tuple[int, ...]]:
    """A patch merger: norm, then two linear layers on merge x merge patches side by side."""
    merged = vision.hidden * vision.merge**2
    norm = {f"{at}norm.weight": (norm_width,), f"{at}norm.bias": (norm_width,)}
    return norm | _linear(at + "linear_fc1", merged, merged) | _linear(at + "linear_fc2", vision.out_hidden, merged)
