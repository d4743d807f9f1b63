"""How pictures reach the language model while training: as symbols made of word embeddings, or as pixels through the vision tower."""

import random
from dataclasses import dataclass

import numpy as np
import torch
from architecture import PICTURE_SIDE
from dialogues import CELLS, Packer
from PIL import Image
from torch import nn
from torch.nn import functional
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeVisionModel, apply_rotary_pos_emb_vision

from probes.traffic.scenes import COLUMNS, ROWS, Scene, draw

SYMBOL_SCALE = 0.5  # a picture token is the sum of four word embeddings times this
SYMBOL_NOISE = 0.08  # standard deviation added to symbols, against embeddings of 0.5


@dataclass(frozen=True, slots=True)
class Sight:
    """What the language model receives for P pictures."""

    tokens: torch.Tensor  # (P, 9, H)
    deepstack: list[torch.Tensor]  # (P, 9, H) each, added after the first language layers


class Symbols:
    """The ideal picture tokens: shape, colour, row and column words in the token, the size word in the first deepstack feature."""

    def __init__(self, packer: Packer) -> None:
        self.packer = packer

    def word(self, text: str) -> int:
        """The single token of a word."""
        (token,) = self.packer.encode(text)
        return token

    def __call__(self, scenes: list[Scene], embedding: torch.Tensor, noise: float = 0.0) -> Sight:
        """Symbols of these scenes in terms of the embedding table (V, H)."""
        words, sizes = self._words(scenes)
        tokens = functional.embedding(words, embedding).sum(2) * SYMBOL_SCALE
        filled = (sizes >= 0)[..., None]
        detail = functional.embedding(sizes.clamp(min=0), embedding) * SYMBOL_SCALE * filled
        blank = torch.zeros_like(detail)
        return Sight(*_noisy(tokens, [detail, blank], noise))

    def _words(self, scenes: list[Scene]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (P, 9, 4) of the words of each cell, and of its size (P, 9), -1 for an empty cell."""
        nothing = self.word("Nothing")
        places = [[self.word(f" {ROWS[cell // 3]}"), self.word(f" {COLUMNS[cell % 3]}")] for cell in range(CELLS)]
        words = [[[nothing, nothing, *place] for place in places] for _ in scenes]
        sizes = torch.full((len(scenes), CELLS), -1)
        for index, scene in enumerate(scenes):
            for item in scene.items:
                words[index][item.cell][:2] = [self.word(f" {item.shape}"), self.word(f" {item.colour}")]
                sizes[index, item.cell] = self.word(f" {item.size}")
        return torch.tensor(words).reshape(-1, CELLS, 4), sizes


def _noisy(tokens: torch.Tensor, deepstack: list[torch.Tensor], noise: float) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return tokens + noise * torch.randn_like(tokens), [feature + noise * torch.randn_like(feature) for feature in deepstack]


def patches(picture: Image.Image) -> np.ndarray:
    """Pixels as the model's image processor gives them: (36, 1536) in blocks of 2 x 2 patches, values -1 to 1."""
    small = picture.resize((PICTURE_SIDE, PICTURE_SIDE), Image.Resampling.BICUBIC)
    pixels = (np.asarray(small, dtype=np.float32) / 255 - 0.5) / 0.5
    blocks = pixels.reshape(3, 2, 16, 3, 2, 16, 3).transpose(
        0, 3, 1, 4, 6, 2, 5
    )  # row, column, row in block, column in block, channel, y, x
    return np.repeat(blocks.reshape(36, 3, 1, 256), 2, axis=2).reshape(36, 1536)


def draw_patches(scenes: list[Scene], rng: random.Random) -> torch.Tensor:
    """(P, 36, 1536): the scenes drawn at random sizes, as pixels."""
    return torch.from_numpy(np.stack([patches(draw(scene, rng.randint(112, 240))) for scene in scenes]))


class Tower(nn.Module):
    """The vision tower's own modules, run on P equal pictures at once instead of one after the other."""

    def __init__(self, visual: Qwen3VLMoeVisionModel) -> None:
        super().__init__()
        self.visual = visual
        cells = torch.arange(36).reshape(3, 3, 2, 2)  # block row, block column, row in block, column in block
        row, column = cells // 12 * 2 + cells // 2 % 2, cells // 4 % 3 * 2 + cells % 2
        self.register_buffer("grid", torch.stack([row.flatten(), column.flatten()]))

    def forward(self, pixels: torch.Tensor) -> Sight:
        """Picture tokens from pixels (P, 36, 1536)."""
        visual, count = self.visual, len(pixels)
        kernel = visual.patch_embed.proj
        states = functional.linear(pixels, kernel.weight.flatten(1), kernel.bias) + visual.pos_embed.weight[self.grid[0] * 6 + self.grid[1]]
        rotation = visual.rotary_pos_emb(states, self.grid.T)
        deepstack = []
        for index, block in enumerate(visual.blocks):
            states = states + _attend(block.attn, block.norm1(states), rotation)
            states = states + block.mlp(block.norm2(states))
            if index in visual.deepstack_visual_indexes:
                merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(index)]
                deepstack.append(merger(states).reshape(count, CELLS, -1))
        return Sight(visual.merger(states).reshape(count, CELLS, -1), deepstack)


def _attend(attention: nn.Module, states: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Full attention within each picture; states (P, 36, hidden)."""
    query, key, value = attention.qkv(states).unflatten(-1, (3, attention.num_heads, -1)).unbind(2)
    query, key = apply_rotary_pos_emb_vision(query, key, *rotation)
    mixed = functional.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    return attention.proj(mixed.transpose(1, 2).flatten(2))
