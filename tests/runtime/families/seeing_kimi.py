"""Tiny Kimi checkpoints that see, under their published names, and what others compute from them.

K2.5 is transformers' model. K3's tower, which it does not have, is transformers' K2.5 tower with RMS norms from torch in place of its layer
norms, zero biases, wider queries, keys and values, positions resampled bilinearly, and the projector's norm moved behind its matrices.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from tiny_checkpoints import BUILDERS, _deepseek, _lively, _save, _tensors
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from transformers.core_model_loading import PermuteForRope
from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25VisionConfig
from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25MultimodalProjection, Kimi_K25VisionModel

Grids = list[tuple[int, int, int]]
IMAGE, VIDEO, START, END = 300, 301, 302, 303
VISION = {
    "patch_size": 14, "pos_emb_height": 6, "pos_emb_width": 6, "pos_emb_time": 4, "hidden_size": 48, "intermediate_size": 64,
    "num_attention_heads": 3, "num_hidden_layers": 3,
}  # fmt: skip
# transformers 5.24 writes some tensors of a K2.5 under names that neither the hub's files nor its own loader have.
MISNAMED = {
    "language_model.model.blocks.": "language_model.model.layers.",
    "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
    "model.mm_projector.": "mm_projector.",
}
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% else %} <|media_begin|> w{{ p.width }} w{{ p.height }} <|media_pad|> <|media_end|> {% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)


def kimi_k25(path: Path) -> Any:
    """transformers' model, read back from the published names."""
    text = _deepseek(n_group=1, topk_group=1, num_experts_per_tok=3).to_dict()
    config = transformers.Kimi_K25Config(
        text_config=text, vision_config=VISION, projection_hidden_size=48, image_token_id=IMAGE, video_token_id=VIDEO,
        vision_start_token_id=START, vision_end_token_id=END, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.Kimi_K25ForConditionalGeneration(config).float().eval()
    _lively(model)
    model.save_pretrained(path)
    tensors = {}
    for name, tensor in _tensors(path).items():
        wrong = next((start for start in MISNAMED if name.startswith(start)), "")
        tensors[MISNAMED.get(wrong, "") + name.removeprefix(wrong)] = tensor
    _save(path, json.loads((path / "config.json").read_text()), tensors)
    found, info = transformers.Kimi_K25ForConditionalGeneration.from_pretrained(path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    _add_words(path)
    return found.eval()


def kimi_k3(path: Path) -> tuple[Any, K3Tower]:
    """The reference of its text, and of its tower."""
    answer = BUILDERS["kimi_k3"](path)
    config = json.loads((path / "config.json").read_text())
    return answer.__self__, K3Tower(config, _tensors(path))  # type: ignore[attr-defined]


class K3Tower:
    """The composed tower and projector; `tensors` as published."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        sizes, text = config["vision_config"], config["text_config"]["hidden_size"]
        hidden, heads, wide = sizes["vt_hidden_size"], sizes["vt_num_attention_heads"], sizes["qkv_hidden_size"]
        vision = Kimi_K25VisionConfig(
            patch_size=sizes["patch_size"], pos_emb_height=sizes["init_pos_emb_height"], pos_emb_width=sizes["init_pos_emb_width"],
            num_attention_heads=heads, num_hidden_layers=sizes["vt_num_hidden_layers"], hidden_size=hidden,
            intermediate_size=sizes["vt_intermediate_size"],
        )  # fmt: skip
        vision.head_dim = wide // heads  # what its rotary embedding turns
        self.tower = Kimi_K25VisionModel(vision).float().eval()
        around = SimpleNamespace(vision_config=vision, text_config=SimpleNamespace(hidden_size=text))
        around.projection_hidden_size, around.projection_layer_norm_eps = hidden, 1e-5
        self.projector = Kimi_K25MultimodalProjection(around).eval()
        self.projector.pre_norm, self.post_norm = nn.Identity(), nn.RMSNorm(text, eps=1e-5)
        self.tower.patch_embed.pos_emb.interpolation_mode = "bilinear"
        self.tower.final_layernorm = nn.RMSNorm(hidden)
        for layer in self.tower.layers:
            layer.norm1, layer.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
            layer.attn.head_dim, layer.attn.scaling = wide // heads, (wide // heads) ** -0.5
            for name in ("q_proj", "k_proj", "v_proj"):
                setattr(layer.attn, name, nn.Linear(hidden, wide))
            layer.attn.proj = nn.Linear(wide, hidden)
        for module in (self.tower, self.projector):
            for name, parameter in module.named_parameters():
                if name.endswith("bias"):
                    nn.init.zeros_(parameter)
        self._load(tensors, heads)

    @torch.no_grad()
    def __call__(self, patches: Tensor, grids: Grids) -> tuple[Tensor, Tensor]:
        """patches [P, 3, p, p] -> (hidden states [P, hidden], features [M, H])."""
        out = self.tower(patches, torch.tensor(grids))
        return out.last_hidden_state, self.post_norm(self.projector(out.pooler_output).squeeze(1))

    @torch.no_grad()
    def _load(self, tensors: dict[str, Tensor], heads: int) -> None:
        at = "vision_tower."
        halves = PermuteForRope()
        tower, projector = self.tower, self.projector
        pairs = [
            (tower.patch_embed.proj.weight, at + "patch_embed.proj"),
            (tower.patch_embed.pos_emb.position_embeddings, at + "patch_embed.pos_emb"),
            (tower.final_layernorm.weight, at + "encoder.final_layernorm"),
            (projector.in_proj.weight, "mm_projector.proj.0"),
            (projector.out_proj.weight, "mm_projector.proj.2"),
            (self.post_norm.weight, "mm_projector.post_norm"),
        ]
        for i, layer in enumerate(tower.layers):
            block = f"{at}encoder.blocks.{i}."
            pairs += [(layer.norm1.weight, block + "norm0"), (layer.norm2.weight, block + "norm1"), (layer.attn.proj.weight, block + "wo")]
            pairs += [(layer.mlp.fc1.weight, block + "mlp.fc0"), (layer.mlp.fc2.weight, block + "mlp.fc1")]
            query, key, value = tensors[block + "wqkv.weight"].chunk(3)
            turned = SimpleNamespace(num_attention_heads=heads)
            layer.attn.q_proj.weight.copy_(halves._permute_for_rope(query, turned))
            layer.attn.k_proj.weight.copy_(halves._permute_for_rope(key, turned))
            layer.attn.v_proj.weight.copy_(value)
        for parameter, name in pairs:
            parameter.copy_(tensors[f"{name}.weight"])


def _add_words(path: Path) -> None:
    """What a server needs besides: a tokenizer whose words are w0, w1 ..., a template that writes the sizes of pictures as K3 reads them,
    and how pictures are prepared."""
    named = {IMAGE: "<|media_pad|>", VIDEO: "<|video|>", START: "<|media_begin|>", END: "<|media_end|>"}
    words = {named.get(i, f"w{i}"): i for i in range(320)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in named.values()])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    (path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "Kimi_K25ImageProcessor"}))
