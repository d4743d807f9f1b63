"""The Qwen3-VL tower: pixel patches to the embeddings that take the places of image tokens.

Computed as transformers 5.24 does (models/qwen3_vl_moe/modeling_qwen3_vl_moe.py, Qwen3VLMoeVisionModel; vision_utils.py).
Patches come in merge-block order: the merge x merge patches of one token are adjacent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.arch import VisionSpec

Grid = tuple[int, int, int]  # temporal, height, width in patches
NORM_EPS = 1e-6


class VisionTower:
    """Images of any sizes are encoded together; attention stays within each frame of each image."""

    def __init__(self, spec: VisionSpec, weights: dict[str, Tensor]) -> None:
        self.spec = spec
        self.weights = weights
        quarter = spec.hidden // spec.heads // 2
        exponent = torch.arange(0, quarter, 2, dtype=torch.float32) / quarter
        self._inverse = (1.0 / spec.rope_theta**exponent).to(weights["pos_embed.weight"].device)  # [D/4]

    def encode(self, patches: Tensor, grids: Sequence[Grid]) -> tuple[Tensor, list[Tensor]]:
        """patches [P, C*t*p*p] -> (embeddings [M, H], side outputs [M, H] for the first decoder layers); M = P / merge^2."""
        weights, spec = self.weights, self.spec
        patch = weights["patch_embed.proj.weight"]
        hidden = F.linear(patches.to(patch), patch.flatten(1), weights["patch_embed.proj.bias"])
        rows, columns = coordinates(grids, spec.merge)
        hidden = hidden + self._positions(rows, columns, grids).to(hidden)
        cos, sin = self._rope(rows, columns)
        frames = [h * w for t, h, w in grids for _ in range(t)]
        side: list[Tensor] = []
        for block in range(spec.depth):
            hidden = self._block(f"blocks.{block}.", hidden, cos, sin, frames)
            if block in spec.deepstack:
                name = f"deepstack_merger_list.{spec.deepstack.index(block)}."
                side.append(self._merge(name, hidden, shuffled_norm=True))
        return self._merge("merger.", hidden, shuffled_norm=False), side

    def _linear(self, name: str, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, name: str, hidden: Tensor) -> Tensor:
        return F.layer_norm(hidden, hidden.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], NORM_EPS)

    def _block(self, at: str, hidden: Tensor, cos: Tensor, sin: Tensor, frames: list[int]) -> Tensor:
        hidden = hidden + self._attention(at + "attn.", self._norm(at + "norm1", hidden), cos, sin, frames)
        inner = F.gelu(self._linear(at + "mlp.linear_fc1", self._norm(at + "norm2", hidden)), approximate="tanh")
        return hidden + self._linear(at + "mlp.linear_fc2", inner)

    def _attention(self, at: str, hidden: Tensor, cos: Tensor, sin: Tensor, frames: list[int]) -> Tensor:
        count, heads = hidden.shape[0], self.spec.heads
        qkv = self._linear(at + "qkv", hidden).view(count, 3, heads, -1)
        turned = _rotate(qkv[:, :2], cos, sin).to(qkv)
        query, key, value = turned[:, 0], turned[:, 1], qkv[:, 2]
        out = torch.empty_like(query)
        for first, n, size in equal_runs(frames):
            q, k, v = (x[first : first + n * size].view(n, size, heads, -1).transpose(1, 2) for x in (query, key, value))
            context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)  # [n, size, heads, D]
            out[first : first + n * size] = context.reshape(n * size, heads, -1)
        return self._linear(at + "proj", out.view(count, -1))

    def _merge(self, at: str, hidden: Tensor, shuffled_norm: bool) -> Tensor:
        """merge x merge patches side by side, through two linear layers. The side mergers normalise after the shuffle."""
        wide = self.spec.hidden * self.spec.merge**2
        hidden = self._norm(at + "norm", hidden.view(-1, wide)) if shuffled_norm else self._norm(at + "norm", hidden).view(-1, wide)
        return self._linear(at + "linear_fc2", F.gelu(self._linear(at + "linear_fc1", hidden)))

    def _positions(self, rows: Tensor, columns: Tensor, grids: Sequence[Grid]) -> Tensor:
        """The learned position grid, resampled bilinearly (corners aligned) to each image's grid: [P, hidden]."""
        table, side = self.weights["pos_embed.weight"], self.spec.grid_side
        counts = torch.tensor([t * h * w for t, h, w in grids])
        heights = torch.tensor([h for _, h, _ in grids]).repeat_interleave(counts)
        widths = torch.tensor([w for _, _, w in grids]).repeat_interleave(counts)
        row_taps, row_weights = _taps(rows, heights, side)
        column_taps, column_weights = _taps(columns, widths, side)
        taps = (row_taps[:, :, None] * side + column_taps[:, None, :]).flatten(1).to(table.device)
        share = (row_weights[:, :, None] * column_weights[:, None, :]).flatten(1).to(table.device)
        return (table[taps] * share[:, :, None]).sum(1)

    def _rope(self, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [P, 1, 1, D]: the first half of the frequencies turns with the row, the second with the column, twice."""
        position = torch.stack((rows, columns), 1).to(self._inverse)  # [P, 2]
        angle = (position[:, :, None] * self._inverse).flatten(1)  # [P, D/2]
        angle = torch.cat((angle, angle), -1)[:, None, None, :]
        return angle.cos(), angle.sin()


def coordinates(grids: Sequence[Grid], merge: int) -> tuple[Tensor, Tensor]:
    """Row and column of every patch, in merge-block order, repeated for every frame: two [P] int64."""
    rows, columns = [], []
    for t, h, w in grids:
        row = torch.arange(h).view(h // merge, 1, merge, 1).expand(-1, w // merge, -1, merge)
        column = torch.arange(w).view(1, w // merge, 1, merge).expand(h // merge, -1, merge, -1)
        rows.append(row.flatten().repeat(t))
        columns.append(column.flatten().repeat(t))
    return torch.cat(rows), torch.cat(columns)


def _taps(index: Tensor, size: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """The two neighbours on a learned axis of length `side` of position `index` on an axis of length `size`, and their weights."""
    source = index.to(torch.float32) * (side - 1) / (size - 1).clamp(min=1)
    low = source.floor()
    taps = low.long()[:, None] + torch.arange(2)
    weights = (1 - (source[:, None] - low[:, None] - torch.arange(2)).abs()).clamp(min=0)
    return taps.clamp(0, side - 1), weights


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[P, 2, heads, D] rotated in float32."""
    heads = heads.float()
    low, high = heads.chunk(2, -1)
    return heads * cos + torch.cat((-high, low), -1) * sin


def equal_runs(frames: list[int]) -> list[tuple[int, int, int]]:
    """Neighbouring frames of equal size attend in one call: (first patch, frames, patches a frame)."""
    runs: list[tuple[int, int, int]] = []
    at = 0
    for size in frames:
        if runs and runs[-1][2] == size:
            first, n, _ = runs[-1]
            runs[-1] = (first, n + 1, size)
        else:
            runs.append((at, 1, size))
        at += size
    return runs
