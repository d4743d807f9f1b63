"""Kimi K2.5 and K2.6: DeepSeek-V3's text model under `language_model.`, and MoonViT with biases and layer norms."""

from __future__ import annotations

from runtime.inventory.builder import Builder
from runtime.inventory.families.common import finish, tied
from runtime.inventory.families.deepseek import add_text
from runtime.inventory.model import Inventory
from runtime.inventory.stated import Stated
from runtime.inventory.storage import read_storage
from runtime.inventory.vision import MoonVit


def kimi_k25(whole: Stated) -> Inventory:
    """Text, vision tower and projector, with the names of the published files."""
    text = whole.section("text_config")
    builder = Builder(read_storage(whole, text))
    _vision(whole, text).add(builder, "vision_tower.", "mm_projector.")
    caches, mixture = add_text(builder, text, "language_model.model.", "language_model.lm_head.weight", tied(text, whole))
    return finish(builder, whole, text, "kimi_k25", text.integer("num_attention_heads"), caches, mixture)


def _vision(whole: Stated, text: Stated) -> MoonVit:
    """Published configs prefix the tower's keys with vt_ and init_; transformers 5 does not."""
    vision = whole.section("vision_config")
    merge = vision.integers("merge_kernel_size")
    hidden = vision.integer("vt_hidden_size", "hidden_size")
    return MoonVit(
        patch=vision.integer("patch_size"),
        hidden=hidden,
        layers=vision.integer("vt_num_hidden_layers", "num_hidden_layers"),
        attention=hidden,
        width=vision.integer("vt_intermediate_size", "intermediate_size"),
        grid=(vision.integer("init_pos_emb_height", "pos_emb_height"), vision.integer("init_pos_emb_width", "pos_emb_width")),
        merge=merge[0] * merge[1],
        text_hidden=text.integer("hidden_size"),
        bias=True,
        pre_norm=True,
    )
