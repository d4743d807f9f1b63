"""The architecture: a very small Qwen3-VL-MoE, and its first weights."""

import torch
from transformers import PreTrainedTokenizerFast, Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

HIDDEN = 128
LAYERS = 4
EXPERTS = 16
EXPERTS_PER_TOKEN = 2
EXPERT_WIDTH = 80  # neither HIDDEN nor HIDDEN / 2: a transposed expert tensor can then be told from its shape
PICTURE_SIDE = 96  # pixels: 6 x 6 patches, merged to 3 x 3 tokens, one for each cell of a scene


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLMoeConfig:
    """The configuration; the vocabulary is padded to a multiple of 64."""
    token = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,  # unused, every layer is a mixture of experts
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "moe_intermediate_size": EXPERT_WIDTH,
        "norm_topk_prob": True,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5_000_000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True},
        "initializer_range": 0.04,
        "tie_word_embeddings": False,
        "pad_token_id": token("<|endoftext|>"),
        "eos_token_id": token("<|im_end|>"),
    }
    vision = {
        "depth": 3,
        "hidden_size": 96,
        "num_heads": 3,
        "intermediate_size": 256,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 1],
        "initializer_range": 0.04,
    }
    return Qwen3VLMoeConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=False,
    )


def build_model(config: Qwen3VLMoeConfig, seed: int = 0) -> Qwen3VLMoeForConditionalGeneration:
    """Fresh weights: wide embeddings, so that a word outweighs what untrained layers add to it, and quiet block outputs."""
    torch.manual_seed(seed)
    model = Qwen3VLMoeForConditionalGeneration(config).float()
    language = model.model.language_model
    with torch.no_grad():
        language.embed_tokens.weight.normal_(std=0.5)
        for layer in language.layers:
            layer.self_attn.o_proj.weight.mul_(0.25)
            layer.mlp.experts.down_proj.mul_(0.25)
    return model
