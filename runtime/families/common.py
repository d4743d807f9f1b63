"""What the families read alike: sizes, special tokens, rotary positions, the keys of grouped-query attention."""

from __future__ import annotations

from typing import Any

from runtime.arch import AttentionSpec, RopeSpec, Skipped, SpecialTokens, YarnSpec
from runtime.config_reader import ConfigReader

NORMS = {"attention_norm": "input_layernorm.weight", "ffn_norm": "post_attention_layernorm.weight"}
GQA = {
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}
MLP = {"gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight"}
# The two ways in which the feed-forwards of a mixture are named: experts of mlp (Qwen2-MoE and its descendants), or Mixtral's.
MLP_EXPERTS = {
    "router": "mlp.gate.weight",
    "router_select": "mlp.gate.e_score_correction_bias",
    "experts.gate_up": "mlp.experts.gate_up_proj",
    "experts.down": "mlp.experts.down_proj",
    "expert.gate": "mlp.experts.{expert}.gate_proj.weight",
    "expert.up": "mlp.experts.{expert}.up_proj.weight",
    "expert.down": "mlp.experts.{expert}.down_proj.weight",
    "shared.gate": "mlp.shared_experts.gate_proj.weight",
    "shared.up": "mlp.shared_experts.up_proj.weight",
    "shared.down": "mlp.shared_experts.down_proj.weight",
}
BLOCK_SPARSE_EXPERTS = {
    "router": "block_sparse_moe.gate.weight",
    "router_select": "block_sparse_moe.gate.e_score_correction_bias",
    "experts.gate_up": "block_sparse_moe.experts.gate_up_proj",
    "experts.down": "block_sparse_moe.experts.down_proj",
    "expert.gate": "block_sparse_moe.experts.{expert}.w1.weight",
    "expert.up": "block_sparse_moe.experts.{expert}.w3.weight",
    "expert.down": "block_sparse_moe.experts.{expert}.w2.weight",
    "shared.gate": "block_sparse_moe.shared_experts.gate_proj.weight",
    "shared.up": "block_sparse_moe.shared_experts.up_proj.weight",
    "shared.down": "block_sparse_moe.shared_experts.down_proj.weight",
}


def layer_keys(prefix: str, *groups: dict[str, str]) -> dict[str, str]:
    """Keys of a decoder under `prefix` ("model."); every alternative of a key gets the prefix."""
    keys: dict[str, str] = {}
    for group in groups:
        for name, key in group.items():
            keys[name] = "|".join(f"{prefix}layers.{{layer}}.{part}" for part in key.split("|"))
    return keys | {"embed": f"{prefix}embed_tokens.weight", "norm": f"{prefix}norm.weight", "head": "lm_head.weight"}


def sizes(text: ConfigReader, eps: float = 1e-6) -> dict[str, Any]:
    """`eps`: the family's default."""
    return {
        "hidden": text.integer("hidden_size"),
        "vocab": text.integer("vocab_size"),
        "norm_eps": text.number("rms_norm_eps", default=eps),
        "max_positions": text.integer("max_position_embeddings", "model_max_length"),
    }


def head_dim(text: ConfigReader) -> int:
    return text.integer("head_dim", default=text.integer("hidden_size") // text.integer("num_attention_heads"))


def read_gqa(text: ConfigReader, **options: Any) -> AttentionSpec:
    heads = text.integer("num_attention_heads")
    return AttentionSpec(heads, text.integer("num_key_value_heads", default=heads), head_dim(text), **options)


def tied(whole: ConfigReader, text: ConfigReader) -> bool:
    """Whether embedding and head are one matrix; CheckpointError when config and text_config say different things."""
    outer, inner = whole.raw.get("tie_word_embeddings"), text.raw.get("tie_word_embeddings")
    if isinstance(outer, bool) and isinstance(inner, bool) and outer != inner:
        raise text.refuse(f"tie_word_embeddings {inner} with {outer} at the top", "one answer")
    return bool(inner if inner is not None else outer)


def silu_only(text: ConfigReader) -> None:
    if (act := text.text("hidden_act", default="silu")) != "silu":
        raise text.refuse(f"hidden_act {act!r}", "silu")


def checked_top_k(text: ConfigReader, top_k: int, experts: int) -> int:
    if not 0 < top_k <= experts:
        raise text.refuse(f"num_experts_per_tok {top_k} of {experts} experts", "1 .. number of experts")
    return top_k


def tokens(whole: ConfigReader, text: ConfigReader) -> SpecialTokens:
    def optional(reader: ConfigReader, *names: str) -> int | None:
        values = [reader.raw[name] for name in names if isinstance(reader.raw.get(name), int)]
        return values[0] if values else None

    eos = text.raw.get("eos_token_id")
    ends = tuple(eos) if isinstance(eos, list) else (() if eos is None else (eos,))
    return SpecialTokens(
        eos=ends,
        bos=optional(text, "bos_token_id"),
        pad=optional(text, "pad_token_id"),
        image=optional(whole, "image_token_id", "media_placeholder_token_id"),
        video=optional(whole, "video_token_id"),
        vision_start=optional(whole, "vision_start_token_id"),
        vision_end=optional(whole, "vision_end_token_id"),
    )


def rope_section(text: ConfigReader) -> ConfigReader:
    """transformers 5 writes `rope_parameters`; published configs have `rope_theta` and `rope_scaling`. CheckpointError when both are
    there and contradict each other."""
    newer, older = text.raw.get("rope_parameters"), text.raw.get("rope_scaling")
    if isinstance(newer, dict) and isinstance(older, dict):
        for key in sorted(newer.keys() & older.keys()):
            if newer[key] != older[key]:
                raise text.refuse(f"rope_parameters {key} {newer[key]!r} beside rope_scaling {key} {older[key]!r}", "one of the two")
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(text.raw.get(key), dict):
            return text.section(key)
    return ConfigReader({}, text.where)


def read_rope(text: ConfigReader, width: int, kinds: tuple[str, ...] = ("default", "yarn"), theta: float | None = None) -> RopeSpec:
    """Rotary positions of heads of `width` values. `theta`: the family's default. CheckpointError for a kind not in `kinds`, and when
    theta stands at two places that contradict each other."""
    rope = rope_section(text)
    kind = rope.text("rope_type", default=rope.text("type", default="default"))
    if kind not in kinds:
        raise rope.refuse(f"rope_type {kind!r}", ", ".join(kinds))
    inner, outer = rope.raw.get("rope_theta"), text.raw.get("rope_theta")
    if inner is not None and outer is not None and float(inner) != float(outer):
        raise text.refuse(f"rope_theta {outer} beside {rope.where}rope_theta {inner}", "one rope_theta")
    base = rope.number("rope_theta") if inner is not None else text.number("rope_theta", default=theta)
    share = rope.number("partial_rotary_factor", default=text.number("partial_rotary_factor", default=1.0))
    dim = int(width * share)
    if not 0 < dim <= width or dim % 2:
        raise rope.refuse(f"partial_rotary_factor {share} of heads of {width}", "an even number of values, at most all")
    return RopeSpec(theta=base, dim=dim, yarn=_yarn(text, rope) if kind == "yarn" else None)


def _yarn(text: ConfigReader, rope: ConfigReader) -> YarnSpec:
    """Defaults and formula: transformers 5.24, modeling_rope_utils.py, _compute_yarn_parameters."""
    longest = text.integer("max_position_embeddings")
    original = rope.integer("original_max_position_embeddings", default=longest)
    factor = rope.number("factor", default=longest / original)
    weight, weight_all = rope.number("mscale", default=0.0), rope.number("mscale_all_dim", default=0.0)
    inferred = YarnSpec.mscale(factor)
    if weight and weight_all:
        inferred = YarnSpec.mscale(factor, weight) / YarnSpec.mscale(factor, weight_all)
    return YarnSpec(
        factor=factor,
        original=original,
        beta_fast=rope.number("beta_fast", default=0.0) or 32.0,
        beta_slow=rope.number("beta_slow", default=0.0) or 1.0,
        truncate=rope.flag("truncate", default=True),
        attention_factor=rope.number("attention_factor", default=inferred),
    )


def predictors(text: ConfigReader, prefix: str, count_key: str = "num_nextn_predict_layers") -> tuple[Skipped, ...]:
    """Multi-token-prediction layers, stored behind the decoder's own: not needed to predict the next token."""
    layers = text.integer("num_hidden_layers")
    count = text.integer(count_key, default=0)
    why = "multi-token prediction layer: not used"
    return tuple(Skipped(f"{prefix}layers.{layers + i}.", why) for i in range(count))
