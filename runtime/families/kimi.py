"""The Kimi models. Kimi Linear and Kimi K3: delta attention, latent attention without positions, and for K3 latent mixtures and
attention residuals. K2.5: DeepSeek-V3's text model. K2.5 and K3 see, with MoonViT.

kimi_linear as transformers 5.24 computes it (models/kimi_linear); K3 by its published configuration and tensors, and two independent open
implementations of its forward pass (colibri c/kimi_k3.c, SGLang's kimi_k3 model).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from runtime.arch import Activation, ArchSpec, KdaSpec, LayerSpec, MlaSpec, MoeSpec, RouterSpec, Skipped
from runtime.config_reader import ConfigReader
from runtime.families.common import BLOCK_SPARSE_EXPERTS, MLP, NORMS, checked_top_k, layer_keys, sizes, tied, tokens
from runtime.families.deepseek import MLA, read_deepseek_text
from runtime.families.moonvit import read_moonvit

_FULL, _LINEAR = "full_attention", "linear_attention"
_KDA = {
    **{name: f"self_attn.{name}_proj.weight" for name in ("k", "v", "f_a", "f_b", "g", "g_a", "g_b")},
    **{f"{name}_conv": f"self_attn.{name}_conv1d.weight" for name in "qkv"},
    "beta": "self_attn.b_proj.weight",
    "dt_bias": "self_attn.dt_bias",
    "decay": "self_attn.A_log",
    "o_norm": "self_attn.o_norm.weight",
    "attention_gate": "self_attn.g_proj.weight",
}
_LATENT = {
    "latent.down": "block_sparse_moe.routed_expert_down_proj.weight",
    "latent.norm": "block_sparse_moe.routed_expert_norm.weight",
    "latent.up": "block_sparse_moe.routed_expert_up_proj.weight",
}
_RESIDUALS = {
    "attention_residual.norm": "self_attention_res_norm.weight",
    "attention_residual.proj": "self_attention_res_proj.weight",
    "ffn_residual.norm": "mlp_res_norm.weight",
    "ffn_residual.proj": "mlp_res_proj.weight",
}
# transformers 5.24 saves a dense layer of kimi_linear under the name of the mixture.
_DENSE = {name: f"{key}|{key.replace('mlp.', 'block_sparse_moe.')}" for name, key in MLP.items()}
_BLIND = tuple(Skipped(prefix, "the config describes no vision tower: text only") for prefix in ("vision_tower.", "mm_projector."))


def read_kimi_linear(config: Mapping[str, Any]) -> ArchSpec:
    text = ConfigReader(config)
    return _decoder(text, text, "kimi_linear", "KimiLinearForCausalLM", "model.")


def read_kimi_k3(config: Mapping[str, Any]) -> ArchSpec:
    """Text and vision of K3."""
    whole = ConfigReader(config)
    text = whole.section("text_config")
    arch = _decoder(whole, text, "kimi_k3", "KimiK3ForConditionalGeneration", "language_model.model.")
    return _seeing(arch, whole, "k3")


def read_kimi_k25(config: Mapping[str, Any]) -> ArchSpec:
    """Text and vision of K2.5; the text model is DeepSeek-V3's, in the hub's key layout."""
    whole = ConfigReader(config)
    text = whole.section("text_config")
    names = ("kimi_k25", "KimiK25ForConditionalGeneration", "language_model.model.", "language_model.lm_head.weight")
    return _seeing(read_deepseek_text(whole, text, *names), whole, "k2.5")


def _seeing(arch: ArchSpec, whole: ConfigReader, form: Literal["k2.5", "k3"]) -> ArchSpec:
    """With its tower, where the config describes one."""
    if not whole.raw.get("vision_config"):
        return replace(arch, skipped=arch.skipped + _BLIND)
    eps = whole.number("projection_layer_norm_eps", default=1e-5)
    vision = read_moonvit(whole.section("vision_config"), arch.hidden, form, eps)
    return replace(arch, vision=vision, keys={**arch.keys, "vision": ""})


def _decoder(whole: ConfigReader, text: ConfigReader, family: str, architecture: str, prefix: str) -> ArchSpec:
    if text.integer("num_nextn_predict_layers", default=0):
        raise text.refuse("num_nextn_predict_layers", "no multi-token prediction layers")
    head = prefix.removesuffix("model.") + "lm_head.weight"
    keys = layer_keys(prefix, NORMS, MLA, _KDA, _DENSE, BLOCK_SPARSE_EXPERTS, _LATENT, _RESIDUALS) | {"head": head}
    keys |= {f"output_residual.{part}": f"{prefix}output_attn_res_{part}.weight" for part in ("norm", "proj")}
    return ArchSpec(
        family=family,
        architecture=architecture,
        layers=_layers(text),
        rope=None,
        keys=keys,
        tokens=tokens(whole, text),
        tied_embeddings=tied(whole, text),
        **sizes(text, eps=1e-5),
    )


def _layers(text: ConfigReader) -> tuple[LayerSpec, ...]:
    count, act = text.integer("num_hidden_layers"), _activation(text)
    full, linear = _mla(text), _kda(text)
    moe, width = _moe(text, act), text.integer("intermediate_size", default=0)
    block = text.integer("attn_res_block_size", default=0)
    layers = []
    for i, (kind, sparse) in enumerate(zip(_attention_kinds(text, count), _sparse(text, count), strict=True)):
        attention = full if kind == _FULL else linear
        residual = {"residual": "attention", "freezes": i % block == 0} if block else {}
        layers.append(LayerSpec(attention, moe if sparse else None, 0 if sparse else width, act, **residual))  # type: ignore[arg-type]
    return tuple(layers)


def _attention_kinds(text: ConfigReader, count: int) -> list[str]:
    """transformers writes `layer_types`; published configs count the layers of each kind from 1."""
    kinds = text.raw.get("layer_types")
    if kinds is None:
        linear = text.section("linear_attn_config")
        full, delta = set(linear.integers("full_attn_layers")), set(linear.integers("kda_layers"))
        if full & delta or full | delta != set(range(1, count + 1)):
            raise linear.refuse("full_attn_layers and kda_layers that do not share out the layers", f"each of 1 .. {count} in one of them")
        kinds = [_FULL if i + 1 in full else _LINEAR for i in range(count)]
    if len(kinds) != count or set(kinds) - {_FULL, _LINEAR}:
        raise text.refuse(f"layer_types {kinds}", f"{_FULL} or {_LINEAR} for each of {count} layers")
    return list(kinds)


def _sparse(text: ConfigReader, count: int) -> list[bool]:
    kinds = text.raw.get("mlp_layer_types")
    if isinstance(kinds, list):
        if len(kinds) != count or set(kinds) - {"dense", "sparse"}:
            raise text.refuse(f"mlp_layer_types {kinds}", f"dense or sparse for each of {count} layers")
        return [kind == "sparse" for kind in kinds]
    if text.integer("moe_layer_freq", default=1) != 1:
        raise text.refuse(f"moe_layer_freq {text.integer('moe_layer_freq')}", "1")
    return [i >= text.integer("first_k_dense_replace", default=1) for i in range(count)]


def _activation(text: ConfigReader) -> Activation:
    act = text.text("hidden_act", default="silu")
    if act == "situ":
        return Activation("situ", text.number("activation_situ_beta"), text.number("activation_situ_linear_beta"))
    if act != "silu":
        raise text.refuse(f"hidden_act {act!r}", "silu, situ")
    return Activation()


def _mla(text: ConfigReader) -> MlaSpec:
    if not text.flag("mla_use_nope", default=True):
        raise text.refuse("mla_use_nope false", "latent attention without positions")
    nope, turning = text.integer("qk_nope_head_dim"), text.integer("qk_rope_head_dim")
    return MlaSpec(
        heads=text.integer("num_attention_heads"),
        q_rank=text.integer("q_lora_rank", default=0) or None,
        kv_rank=text.integer("kv_lora_rank"),
        nope_dim=nope,
        rope_dim=turning,
        v_dim=text.integer("v_head_dim"),
        scale=(nope + turning) ** -0.5,
        rotated=False,
        gated=text.flag("mla_use_output_gate"),
        bias=text.flag("attention_bias"),
    )


def _kda(text: ConfigReader) -> KdaSpec:
    linear = text.section("linear_attn_config") if isinstance(text.raw.get("linear_attn_config"), dict) else ConfigReader({}, text.where)
    bound = linear.raw.get("gate_lower_bound")
    return KdaSpec(
        heads=linear.integer("num_heads", default=text.integer("linear_num_heads", default=32)),
        head_dim=linear.integer("head_dim", default=text.integer("linear_head_dim", default=128)),
        conv=linear.integer("short_conv_kernel_size", default=text.integer("linear_conv_kernel_dim", default=4)),
        lower_bound=None if bound is None else linear.number("gate_lower_bound"),
        full_gate=linear.flag("use_full_rank_gate"),
    )


def _moe(text: ConfigReader, act: Activation) -> MoeSpec:
    if (score := text.text("moe_router_activation_func", default="sigmoid")) != "sigmoid":
        raise text.refuse(f"moe_router_activation_func {score!r}", "sigmoid")
    experts = text.integer("num_experts", "num_local_experts")
    groups, top_groups = text.integer("num_expert_group", default=1), text.integer("topk_group", default=1)
    top_k = checked_top_k(text, text.integer("num_experts_per_token", "num_experts_per_tok"), experts)
    if experts % groups or not 0 < top_groups <= groups or top_k > experts // groups * top_groups:
        message = f"{top_k} of {experts} experts from topk_group {top_groups} of num_expert_group {groups}"
        raise text.refuse(message, "groups that hold enough experts")
    width = text.integer("moe_intermediate_size")
    router = RouterSpec(
        top_k,
        renormalise=text.flag("moe_renormalize", default=True),
        score="sigmoid",
        selection_bias=True,
        groups=groups,
        top_groups=top_groups,
        scale=text.number("routed_scaling_factor", default=1.0),
    )
    return MoeSpec(
        experts,
        width,
        router,
        act,
        latent=text.integer("routed_expert_hidden_size", default=0) or None,
        latent_norm=text.flag("latent_moe_use_norm"),
        shared_width=width * text.integer("num_shared_experts", default=0),
    )
