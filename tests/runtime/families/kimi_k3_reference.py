"""A test-only Kimi K3, one sequence at a time, composed of parts that others wrote, and formulas written out where there are none.

- delta attention: transformers' recurrent_kimi_delta_attention and short convolution, the bounded gate of its Glm5NextTextForgetGate
- latent attention without positions: transformers' KimiLinearAttention, its context gated before the output projection
- router: transformers' KimiLinearTopkRouter
- MXFP4: transformers' convert_moe_packed_tensors
- attention residuals, SiTU, latent mixture: written out for each token, the residuals in plain Python floats
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import KimiLinearConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextForgetGate
from transformers.models.kimi_linear import modeling_kimi_linear as kimi

PREFIX = "language_model.model."


def mix(rows: list[Tensor], norm: Tensor, proj: Tensor, eps: float) -> Tensor:
    """Attention residuals of one token, in Python floats: rows of [H], the running stream last."""
    vectors = [row.tolist() for row in rows]
    query = [a * b for a, b in zip(norm.tolist(), proj.tolist(), strict=True)]
    scores = []
    for vector in vectors:
        rms = math.sqrt(sum(v * v for v in vector) / len(vector) + eps)
        scores.append(sum(v * q for v, q in zip(vector, query, strict=True)) / rms)
    highest = max(scores)
    shares = [math.exp(score - highest) for score in scores]
    total = sum(shares)
    return torch.tensor([sum(s * v[d] for s, v in zip(shares, vectors, strict=True)) / total for d in range(len(query))])


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * linear_beta * torch.tanh(up / linear_beta)


def unpack_mxfp4(packed: Tensor, scales: Tensor) -> Tensor:
    """[rows, columns / 2] bytes and [rows, columns / 32] exponents -> [rows, columns]."""
    blocks = packed.view(1, packed.shape[0], -1, 16)
    return convert_moe_packed_tensors(blocks, scales.unsqueeze(0), dtype=torch.float32)[0].t().contiguous()


class KimiK3:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.text = config, config["text_config"]
        text, linear = self.text, self.text["linear_attn_config"]
        self.parts = KimiLinearConfig(
            **{key: text[key] for key in text if key not in ("model_type", "hidden_act", "quantization_config", "linear_attn_config")},
            linear_head_dim=linear["head_dim"], linear_num_heads=linear["num_heads"], pad_token_id=0, bos_token_id=1,
            layer_types=["full_attention"] * text["num_hidden_layers"], attn_implementation="eager",
        )  # fmt: skip
        self.parts.linear_lower_bound = linear["gate_lower_bound"]
        self.weights: dict[str, Tensor] = {}

    def is_kda(self, i: int) -> bool:
        return i + 1 in self.text["linear_attn_config"]["kda_layers"]

    def tensors(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Random values under the published names, in the published dtypes (float32 instead of bfloat16 where that is published)."""

        def rand(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator) * 0.2

        def norm(size: int) -> Tensor:
            return 1 + rand(size)

        text, linear = self.text, self.text["linear_attn_config"]
        hidden, width = text["hidden_size"], linear["num_heads"] * linear["head_dim"]
        out = {
            "language_model.lm_head.weight": rand(text["vocab_size"], hidden),
            PREFIX + "embed_tokens.weight": rand(text["vocab_size"], hidden) * 5,
            PREFIX + "norm.weight": norm(hidden),
            PREFIX + "output_attn_res_norm.weight": norm(hidden),
            PREFIX + "output_attn_res_proj.weight": rand(1, hidden) * 3,
        }
        for i in range(text["num_hidden_layers"]):
            layer: dict[str, Tensor] = {}
            for name in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
                layer[f"{name}.weight"] = norm(hidden)
            for name in ("self_attention_res_proj", "mlp_res_proj"):
                layer[f"{name}.weight"] = rand(1, hidden) * 3
            if self.is_kda(i):
                for name in ("q", "k", "v", "g"):
                    layer[f"self_attn.{name}_proj.weight"] = rand(width, hidden)
                for name in ("q", "k", "v"):
                    layer[f"self_attn.{name}_conv1d.weight"] = rand(width, 1, linear["short_conv_kernel_size"]) * 3
                stored = torch.zeros(2 * linear["num_heads"])
                stored[: linear["num_heads"]] = rand(linear["num_heads"]) * 5
                layer |= {
                    "self_attn.o_proj.weight": rand(hidden, width),
                    "self_attn.f_a_proj.weight": rand(linear["head_dim"], hidden),
                    "self_attn.f_b_proj.weight": rand(width, linear["head_dim"]),
                    "self_attn.b_proj.weight": rand(linear["num_heads"], hidden),
                    "self_attn.dt_bias": rand(width) * 5,
                    "self_attn.A_log": stored,
                    "self_attn.o_norm.weight": norm(linear["head_dim"]),
                }
            else:
                heads, rank = text["num_attention_heads"], text["kv_lora_rank"]
                keys, values = text["qk_nope_head_dim"] + text["qk_rope_head_dim"], text["v_head_dim"]
                layer |= {
                    "self_attn.q_a_proj.weight": rand(text["q_lora_rank"], hidden),
                    "self_attn.q_a_layernorm.weight": norm(text["q_lora_rank"]),
                    "self_attn.q_b_proj.weight": rand(heads * keys, text["q_lora_rank"]),
                    "self_attn.kv_a_proj_with_mqa.weight": rand(rank + text["qk_rope_head_dim"], hidden),
                    "self_attn.kv_a_layernorm.weight": norm(rank),
                    "self_attn.kv_b_proj.weight": rand(heads * (text["qk_nope_head_dim"] + values), rank),
                    "self_attn.g_proj.weight": rand(heads * values, hidden),
                    "self_attn.o_proj.weight": rand(hidden, heads * values),
                }
            layer |= self._dense(rand, hidden) if i < text["first_k_dense_replace"] else self._mixture(rand, norm, generator)
            out |= {f"{PREFIX}layers.{i}.{name}": tensor for name, tensor in layer.items()}
        return out | self._tower(rand, norm)

    def _dense(self, rand: Any, hidden: int) -> dict[str, Tensor]:
        width = self.text["intermediate_size"]
        up, down = (width, hidden), (hidden, width)
        return {f"mlp.{name}_proj.weight": rand(*shape) for name, shape in (("gate", up), ("up", up), ("down", down))}

    def _mixture(self, rand: Any, norm: Any, generator: torch.Generator) -> dict[str, Tensor]:
        text = self.text
        hidden, latent, width = text["hidden_size"], text["routed_expert_hidden_size"], text["moe_intermediate_size"]
        shared = width * text["num_shared_experts"]
        out = {
            "gate.weight": rand(text["num_experts"], hidden),
            "gate.e_score_correction_bias": rand(text["num_experts"]),
            "routed_expert_down_proj.weight": rand(latent, hidden),
            "routed_expert_norm.weight": norm(latent),
            "routed_expert_up_proj.weight": rand(hidden, latent),
            "shared_experts.gate_proj.weight": rand(shared, hidden),
            "shared_experts.up_proj.weight": rand(shared, hidden),
            "shared_experts.down_proj.weight": rand(hidden, shared),
        }
        for expert in range(text["num_experts"]):
            for name, rows, columns in (("w1", width, latent), ("w3", width, latent), ("w2", latent, width)):
                at = f"experts.{expert}.{name}.weight"
                out[f"{at}_packed"] = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=generator)
                out[f"{at}_scale"] = torch.randint(120, 125, (rows, columns // 32), dtype=torch.uint8, generator=generator)
        return {f"block_sparse_moe.{name}": tensor for name, tensor in out.items()}

    def _tower(self, rand: Any, norm: Any) -> dict[str, Tensor]:
        vision = self.config["vision_config"]
        hidden, inner, qkv = vision["vt_hidden_size"], vision["vt_intermediate_size"], vision["qkv_hidden_size"]
        out = {
            "vision_tower.patch_embed.proj.weight": rand(hidden, 3, vision["patch_size"], vision["patch_size"]),
            "vision_tower.patch_embed.pos_emb.weight": rand(vision["init_pos_emb_height"], vision["init_pos_emb_width"], hidden),
            "vision_tower.encoder.final_layernorm.weight": norm(hidden),
            "mm_projector.proj.0.weight": rand(4 * hidden, 4 * hidden),
            "mm_projector.proj.2.weight": rand(self.text["hidden_size"], 4 * hidden),
            "mm_projector.post_norm.weight": norm(self.text["hidden_size"]),
        }
        at = "vision_tower.encoder.blocks.0."
        shapes = {"wqkv": (3 * qkv, hidden), "wo": (hidden, qkv), "mlp.fc0": (inner, hidden), "mlp.fc1": (hidden, inner)}
        out |= {f"{at}{name}.weight": rand(*shape) for name, shape in shapes.items()}
        return out | {f"{at}{name}.weight": norm(hidden) for name in ("norm0", "norm1")}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes the weights over; packed ones are decoded."""
        self.weights = {name: tensor for name, tensor in tensors.items() if not name.endswith(("_packed", "_scale"))}
        for name, packed in tensors.items():
            if name.endswith("_packed"):
                stem = name.removesuffix("_packed")
                self.weights[stem] = unpack_mxfp4(packed, tensors[f"{stem}_scale"])

    def embed(self, tokens: list[int]) -> Tensor:
        """[T, H]."""
        return self.weights[PREFIX + "embed_tokens.weight"][tokens]

    @torch.no_grad()
    def logits(self, tokens: list[int], embeds: Tensor | None = None) -> Tensor:
        """[T, V]; `embeds` [T, H]: what the decoder reads, where it is not the tokens' own embeddings."""
        w, eps = self.weights, self.text["rms_norm_eps"]
        running: Tensor | None = self.embed(tokens) if embeds is None else embeds
        frozen: list[Tensor] = []

        def read(at: str, stream: Tensor) -> Tensor:
            norm, proj = w[f"{at}_norm.weight"], w[f"{at}_proj.weight"][0]
            return torch.stack([mix([*(f[t] for f in frozen), stream[t]], norm, proj, eps) for t in range(len(tokens))])

        for i in range(self.text["num_hidden_layers"]):
            at = f"{PREFIX}layers.{i}."
            assert running is not None
            seen = read(at + "self_attention_res", running) if frozen else running
            if i % self.text["attn_res_block_size"] == 0:
                frozen.append(running)
                running = None
            seen = self._norm(seen, w[at + "input_layernorm.weight"], eps)
            attended = self._delta(seen, at + "self_attn.") if self.is_kda(i) else self._latent(seen, at + "self_attn.")
            running = attended if running is None else running + attended
            seen = self._norm(read(at + "mlp_res", running), w[at + "post_attention_layernorm.weight"], eps)
            dense = i < self.text["first_k_dense_replace"]
            running = running + (self._feed(seen, at + "mlp.") if dense else self._experts(seen, at + "block_sparse_moe."))
        assert running is not None
        last = self._norm(read(PREFIX + "output_attn_res", running), w[PREFIX + "norm.weight"], eps)
        return last @ w["language_model.lm_head.weight"].t()

    @staticmethod
    def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = kimi.KimiLinearRMSNorm(x.shape[-1], eps)
        norm.weight.data = weight
        return norm(x)

    def _delta(self, x: Tensor, at: str) -> Tensor:
        w, linear = self.weights, self.text["linear_attn_config"]
        heads, dim = linear["num_heads"], linear["head_dim"]
        gate = Glm5NextTextForgetGate(self.parts)
        gate.f_a_proj.weight.data, gate.f_b_proj.weight.data = w[at + "f_a_proj.weight"], w[at + "f_b_proj.weight"]
        gate.dt_bias.data, gate.A_log.data = w[at + "dt_bias"], w[at + "A_log"][:heads]
        q, k, v = (
            kimi.causal_conv1d_fn((x @ w[f"{at}{n}_proj.weight"].t()).t()[None], w[f"{at}{n}_conv1d.weight"].squeeze(1), activation="silu")
            .transpose(1, 2)
            .unflatten(2, (heads, dim))
            for n in ("q", "k", "v")
        )
        beta = torch.sigmoid(x @ w[at + "b_proj.weight"].t())[None]
        out, _ = kimi.recurrent_kimi_delta_attention(q, k, v, gate(x[None]), beta, None, False, use_qk_l2norm_in_kernel=True)
        norm = kimi.KimiLinearRMSNormGated(dim, self.text["rms_norm_eps"])
        norm.weight.data = w[at + "o_norm.weight"]
        return norm(out[0], (x @ w[at + "g_proj.weight"].t()).unflatten(1, (heads, dim))).flatten(1) @ w[at + "o_proj.weight"].t()

    def _latent(self, x: Tensor, at: str) -> Tensor:
        attention = kimi.KimiLinearAttention(self.parts, 0)
        for name, parameter in attention.named_parameters():
            parameter.data = self.weights[at + name]
        gate = torch.sigmoid(x @ self.weights[at + "g_proj.weight"].t())
        attention.o_proj.register_forward_pre_hook(lambda _, inputs: (inputs[0] * gate,))
        mask = torch.full((len(x), len(x)), -torch.inf).triu(1)[None, None]
        return attention(x[None], mask)[0][0]

    def _feed(self, x: Tensor, at: str) -> Tensor:
        w = self.weights
        return self._glu(x, w[at + "gate_proj.weight"], w[at + "up_proj.weight"], w[at + "down_proj.weight"])

    def _glu(self, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        beta, linear = self.text["activation_situ_beta"], self.text["activation_situ_linear_beta"]
        return situ(F.linear(x, gate), F.linear(x, up), beta, linear) @ down.t()

    def _experts(self, x: Tensor, at: str) -> Tensor:
        w = self.weights
        router = kimi.KimiLinearTopkRouter(self.parts)
        router.weight.data = w[at + "gate.weight"]
        router.e_score_correction_bias.data = w[at + "gate.e_score_correction_bias"]
        _, shares, chosen = router(x)
        latent = x @ w[at + "routed_expert_down_proj.weight"].t()
        total = torch.zeros_like(latent)
        for t in range(len(x)):
            for share, expert in zip(shares[t], chosen[t].tolist(), strict=True):
                total[t] += share * self._glu(latent[t], *(w[f"{at}experts.{expert}.{n}.weight"] for n in ("w1", "w3", "w2")))
        total = self._norm(total, w[at + "routed_expert_norm.weight"], self.text["rms_norm_eps"])
        return total @ w[at + "routed_expert_up_proj.weight"].t() + self._feed(x, at + "shared_experts.")
