"""MoonViT, the vision tower of the Kimi models: from a vision_config to its spec.

K2.5 as transformers 5.24 has it (models/kimi_k25). K3 by its published tensors and what the open engines that serve it agree on (vLLM's
kimi_k25_vit with RMS norms, mlxcel's moonvit3d): the same tower with other norms, no biases, and positions resampled bilinearly.
"""

from __future__ import annotations

from typing import Any, Literal

from runtime.arch import MoonVitSpec
from runtime.config_reader import ConfigReader
from runtime.families.common import rope_section

# What a vision_config may say, and what is computed. Whatever it leaves out is so.
_BOTH: dict[str, Any] = {
    "hidden_act": "gelu_pytorch_tanh",
    "activation_func": "gelu_pytorch_tanh",
    "projector_hidden_act": "gelu",
    "mlp_type": "mlp2",
    "pos_emb_type": "divided_fixed",
    "merge_type": "sd2_tpool",
    "video_attn_type": "spatial_temporal",
}
_FORMS: dict[str, dict[str, Any]] = {
    "k2.5": {"norm_type": "layernorm", "mm_projector_type": "patchmerger"},
    "k3": {"norm_type": "rmsnorm", "mm_projector_type": "patchmergerv2"},
}
_BIASES = ("attn_bias", "linear_bias", "patch_embed_proj_bias")


def read_moonvit(vision: ConfigReader, out_hidden: int, form: Literal["k2.5", "k3"], projector_eps: float) -> MoonVitSpec:
    """Published configs prefix the tower's keys with vt_ and init_; transformers 5 does not. `projector_eps`: where it is not in there.
    CheckpointError for another kind of tower."""
    for key, computed in {**_BOTH, **_FORMS[form], **dict.fromkeys(_BIASES, form == "k2.5")}.items():
        if vision.raw.get(key) not in (None, computed):
            raise vision.refuse(f"{key} {vision.raw[key]!r}", repr(computed))
    hidden, heads = vision.integer("vt_hidden_size", "hidden_size"), vision.integer("vt_num_attention_heads", "num_attention_heads")
    attention = vision.integer("qkv_hidden_size", default=hidden)
    if heads < 1 or attention % (4 * heads):
        raise vision.refuse(f"{heads} heads in an attention of {attention} values", "heads of a multiple of four: a pair for each axis")
    for key, inside in (("mm_hidden_size", hidden), ("text_hidden_size", out_hidden)):
        if vision.integer(key, default=inside) != inside:
            raise vision.refuse(f"{key} {vision.raw[key]}", str(inside))
    rows, columns = _pair(vision)
    if rows != columns:
        raise vision.refuse(f"merge_kernel_size {[rows, columns]}", "a square")
    rope = rope_section(vision)
    if (kind := rope.text("rope_type", default="axial")) != "axial":
        raise rope.refuse(f"rope_type {kind!r}", "axial")
    resampling = vision.text("pos_emb_interpolation_mode", default="bicubic" if form == "k2.5" else "bilinear")
    if resampling not in ("bicubic", "bilinear"):
        raise vision.refuse(f"pos_emb_interpolation_mode {resampling!r}", "bicubic, bilinear")
    return MoonVitSpec(
        depth=vision.integer("vt_num_hidden_layers", "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        attention=attention,
        width=vision.integer("vt_intermediate_size", "intermediate_size"),
        patch=vision.integer("patch_size"),
        merge=rows,
        out_hidden=out_hidden,
        grid=(vision.integer("init_pos_emb_height", "pos_emb_height"), vision.integer("init_pos_emb_width", "pos_emb_width")),
        frames=vision.integer("init_pos_emb_time", "pos_emb_time", default=4),
        form=form,
        resampling=resampling,  # type: ignore[arg-type]  # checked above
        projector_eps=vision.number("projector_ln_eps", default=projector_eps),
        rope_theta=rope.number("rope_theta", default=10_000.0),
    )


def _pair(vision: ConfigReader) -> tuple[int, int]:
    kernel = vision.integers("merge_kernel_size", default=(2, 2))
    if len(kernel) != 2:
        raise vision.refuse(f"merge_kernel_size {list(kernel)}", "rows and columns")
    return kernel[0], kernel[1]
