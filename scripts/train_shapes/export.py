"""Write the checkpoint in Hugging Face layout: bfloat16 shards, tokenizer, chat template, generation and picture settings."""

import copy
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3VLMoeForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

PICTURE_PIXELS = {"shortest_edge": 8192, "longest_edge": 10240}  # every square picture up to 2000 pixels becomes 96 x 96


def export(model: Qwen3VLMoeForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """All files of the checkpoint."""
    stored = copy.deepcopy(model).to(torch.bfloat16)
    stored.config.dtype = torch.bfloat16
    stored.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=128, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    stored.save_pretrained(folder, max_shard_size="1MB")
    tokenizer.save_pretrained(folder)
    image_processor().save_pretrained(folder)


def image_processor() -> Qwen2VLImageProcessorPil:
    """The picture settings the model is trained with."""
    half = [0.5, 0.5, 0.5]
    return Qwen2VLImageProcessorPil(
        size=PICTURE_PIXELS, patch_size=16, temporal_patch_size=2, merge_size=2, image_mean=half, image_std=half
    )
