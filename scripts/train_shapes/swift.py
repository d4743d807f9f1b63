"""The language model's own weights behind a faster forward pass for training: experts as one sort, only answers in the last layer."""

import torch
from dialogues import Batch
from sight import Sight
from torch import nn
from torch.nn import functional
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeTextModel, apply_rotary_pos_emb

Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, (B, T, head size) each


class RmsNorm(torch.autograd.Function):
    """x / rms(x) * weight over the last dimension, with the gradient in closed form."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:  # type: ignore[no-untyped-def]
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        unit = x * scale
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[no-untyped-def]
        unit, scale, weight = ctx.saved_tensors
        product = gradient * unit
        to_weight = product.flatten(0, -2).sum(0)
        shift = (product @ weight[:, None]) / unit.shape[-1]
        return (gradient * weight).addcmul_(unit, shift, value=-1).mul_(scale), to_weight, None


def normalise(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One of the model's RMSNorm modules, swiftly."""
    return RmsNorm.apply(x, module.weight, module.variance_epsilon)


class SwiftLanguage:
    """Qwen3VLMoeTextModel for training batches; gives the same numbers."""

    def __init__(self, language: Qwen3VLMoeTextModel) -> None:
        self.language = language
        self.routed: list[torch.Tensor] = []  # router logits of each layer, (tokens, experts)

    def __call__(self, batch: Batch, sight: Sight | None, wanted: torch.Tensor) -> torch.Tensor:
        """Final states (W, H) of the `wanted` flat token positions."""
        self.routed = []
        states = self.language.embed_tokens(batch.ids)
        if sight is not None:
            states = states.masked_scatter(batch.pictured[..., None], sight.tokens)
        rotation = self.language.rotary_emb(states, batch.positions)
        *early, last = self.language.layers
        mask = batch.mask
        for index, layer in enumerate(early):
            states = states + layer.self_attn.o_proj(self._attend(layer, states, rotation, mask))
            states = states + self._experts(layer, states.flatten(0, 1)).view_as(states)
            if sight is not None and index < len(sight.deepstack):
                picture = batch.pictured.flatten().nonzero()[:, 0]
                states = states.flatten(0, 1).index_add(0, picture, sight.deepstack[index].flatten(0, 1)).view_as(states)
        mixed = self._attend(last, states, rotation, mask).flatten(0, 1)[wanted]
        states = states.flatten(0, 1)[wanted] + last.self_attn.o_proj(mixed)
        return normalise(self.language.norm, states + self._experts(last, states))

    def _attend(self, layer: nn.Module, states: torch.Tensor, rotation: Rotation, mask: torch.Tensor) -> torch.Tensor:
        """Mixed values (B, T, heads * head size) before the output projection."""
        attention, normed = layer.self_attn, normalise(layer.input_layernorm, states)
        query, key, value = (
            project(normed).unflatten(-1, (-1, attention.head_dim)) for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = normalise(attention.q_norm, query).transpose(1, 2), normalise(attention.k_norm, key).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *rotation)
        key, value = (kept.repeat_interleave(attention.num_key_value_groups, dim=1) for kept in (key, value.transpose(1, 2)))
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)

    def _experts(self, layer: nn.Module, states: torch.Tensor) -> torch.Tensor:
        """What the chosen experts add to states (N, H)."""
        normed, experts = normalise(layer.post_attention_layernorm, states), layer.mlp.experts
        logits, weights, chosen = layer.mlp.gate(normed)
        self.routed.append(logits)
        order = chosen.flatten().argsort()
        source = order // chosen.shape[1]
        groups = normed[source].split(chosen.flatten().bincount(minlength=experts.num_experts).tolist())
        outputs = []
        for group, enter, leave in zip(groups, experts.gate_up_proj, experts.down_proj, strict=True):
            gate, up = functional.linear(group, enter).chunk(2, dim=-1)
            outputs.append(functional.linear(functional.silu(gate) * up, leave))
        weighted = torch.cat(outputs) * weights.flatten()[order, None]
        return torch.zeros_like(states).index_add(0, source, weighted)
