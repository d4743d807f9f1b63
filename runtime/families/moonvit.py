"""Shapes of K3's vision tower and projector, by its config and published tensors: checked with the rest, though not computed."""

from __future__ import annotations

from runtime.config_reader import ConfigReader


def read_moonvit(vision: ConfigReader, out_hidden: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of the tower and of the projector to `out_hidden`."""
    hidden, patch = vision.integer("vt_hidden_size"), vision.integer("patch_size")
    qkv, inner = vision.integer("qkv_hidden_size", default=hidden), vision.integer("vt_intermediate_size")
    rows, columns = vision.integers("merge_kernel_size", default=(2, 2))
    merged = hidden * rows * columns
    shapes: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embed.proj.weight": (hidden, 3, patch, patch),
        "vision_tower.patch_embed.pos_emb.weight": (vision.integer("init_pos_emb_height"), vision.integer("init_pos_emb_width"), hidden),
        "vision_tower.encoder.final_layernorm.weight": (hidden,),
        "mm_projector.proj.0.weight": (merged, merged),
        "mm_projector.proj.2.weight": (out_hidden, merged),
        "mm_projector.post_norm.weight": (out_hidden,),
    }
    for block in range(vision.integer("vt_num_hidden_layers")):
        at = f"vision_tower.encoder.blocks.{block}."
        shapes |= {f"{at}norm0.weight": (hidden,), f"{at}norm1.weight": (hidden,)}
        shapes |= {f"{at}wqkv.weight": (3 * qkv, hidden), f"{at}wo.weight": (hidden, qkv)}
        shapes |= {f"{at}mlp.fc0.weight": (inner, hidden), f"{at}mlp.fc1.weight": (hidden, inner)}
    return shapes
