"""MoonViT-3D and its projector: pixel patches to the embeddings that take the places of the Kimi models' image tokens.

K2.5 is computed as transformers 5.24 does (models/kimi_k25/modeling_kimi_k25.py), from the weights as they are published: queries and
keys have their pairs side by side. K3 is the same tower with its own norms and widths (`runtime.families.moonvit`).
Patches come in reading order, frame after frame; all frames of a grid attend to each other, and share their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.arch import MoonVitSpec
from runtime.vision import Grid, coordinates, equal_runs

LAYER_NORM_EPS = 1e-5
# K3's norms are published as torch.nn.RMSNorm without an epsilon: this is what torch 2.13 then adds, whatever the dtype. Some engines pin
# bfloat16's epsilon instead, 2^-7; nothing published decides between them.
RMS_NORM_EPS = torch.finfo(torch.float32).eps
TIME_BASE = 10_000.0


class MoonVitTower:
    """Images of any sizes are encoded together; attention stays within each of them."""

    def __init__(self, spec: MoonVitSpec, weights: dict[str, Tensor]) -> None:
        self.spec = spec
        self.weights = weights
        device, axis = weights["vision_tower.patch_embed.proj.weight"].device, spec.attention // spec.heads // 2
        self._inverse = _frequencies(axis, spec.rope_theta).to(device)  # [D/4]
        angle = torch.outer(torch.arange(spec.frames, dtype=torch.float32), _frequencies(spec.hidden, TIME_BASE))
        self._time = torch.cat((angle.sin(), angle.cos()), 1).to(device)  # [frames, hidden]

    def encode(self, patches: Tensor, grids: Sequence[Grid]) -> tuple[Tensor, list[Tensor]]:
        """patches [P, 3 p p] (or [P, 3, p, p]) -> (embeddings [M, H], no side outputs); M = P / merge^2, and not more for more frames.

        ValueError for a grid with more frames than there are time positions, or that cannot be merged.
        """
        return self.project(self.merge(self.blocks(patches, grids), grids)), []

    def blocks(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """[P, hidden], normalised: what transformers calls the tower's last hidden state."""
        self._check(grids)
        spec, patch = self.spec, self.weights["vision_tower.patch_embed.proj.weight"]
        hidden = F.linear(patches.flatten(1).to(patch), patch.flatten(1), self.weights.get("vision_tower.patch_embed.proj.bias"))
        hidden = hidden + torch.cat([self._positions(grid) for grid in grids]).to(hidden)
        turns = self._turns(grids)
        for block in range(spec.depth):
            at = f"vision_tower.encoder.blocks.{block}."
            hidden = hidden + self._attention(at, self._norm(at + "norm0", hidden), turns, grids)
            inner = F.gelu(self._linear(at + "mlp.fc0", self._norm(at + "norm1", hidden)), approximate="tanh")
            hidden = hidden + self._linear(at + "mlp.fc1", inner)
        return self._norm("vision_tower.encoder.final_layernorm", hidden)

    def merge(self, hidden: Tensor, grids: Sequence[Grid]) -> Tensor:
        """[P, hidden] -> [M, merge^2, hidden]: the patches of a token, in reading order, each the mean over the frames."""
        side, parts = self.spec.merge, []
        for part, (t, h, w) in zip(torch.split(hidden, [t * h * w for t, h, w in grids]), grids, strict=True):
            still = part.view(t, h * w, -1).float().mean(0).to(part) if t > 1 else part
            blocks = still.view(h // side, side, w // side, side, -1).transpose(1, 2)
            parts.append(blocks.reshape(h * w // side**2, side**2, -1))
        return torch.cat(parts)

    def project(self, merged: Tensor) -> Tensor:
        """[M, merge^2, hidden] -> [M, H]."""
        before, eps = self.spec.form == "k2.5", self.spec.projector_eps
        hidden = (self._norm("mm_projector.pre_norm", merged, eps) if before else merged).flatten(1)
        hidden = self._linear("mm_projector.proj.2", F.gelu(self._linear("mm_projector.proj.0", hidden)))
        return hidden if before else self._norm("mm_projector.post_norm", hidden, eps)

    def _check(self, grids: Sequence[Grid]) -> None:
        frames, side = self.spec.frames, self.spec.merge
        for t, h, w in grids:
            if not 0 < t <= frames:
                raise ValueError(f"a grid of {t} frames: MoonViT has positions for {frames}")
            if h % side or w % side:
                raise ValueError(f"a grid of {h} x {w} patches, of which {side} x {side} make a token")

    def _linear(self, name: str, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _norm(self, name: str, hidden: Tensor, eps: float | None = None) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if bias is None:
            return F.rms_norm(hidden, weight.shape, weight, RMS_NORM_EPS if eps is None else eps)
        return F.layer_norm(hidden, weight.shape, weight, bias, LAYER_NORM_EPS if eps is None else eps)

    def _attention(self, at: str, hidden: Tensor, turns: Tensor, grids: Sequence[Grid]) -> Tensor:
        count, heads = hidden.shape[0], self.spec.heads
        qkv = self._linear(at + "wqkv", hidden).view(count, 3, heads, -1)
        turned = _rotate(qkv[:, :2], turns).to(qkv)
        query, key, value = turned[:, 0], turned[:, 1], qkv[:, 2]
        out = torch.empty_like(query)
        for first, n, size in equal_runs([t * h * w for t, h, w in grids]):
            q, k, v = (x[first : first + n * size].view(n, size, heads, -1).transpose(1, 2) for x in (query, key, value))
            context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)  # [n, size, heads, D]
            out[first : first + n * size] = context.reshape(n * size, heads, -1)
        return self._linear(at + "wo", out.flatten(1))

    def _positions(self, grid: Grid) -> Tensor:
        """[t h w, hidden]: the learned grid, resampled to the image's (pixels as areas, as F.interpolate does); a clip's frames besides
        have a fixed sine and cosine each."""
        t, h, w = grid
        table = self.weights["vision_tower.patch_embed.pos_emb.weight"].float()
        if (h, w) != self.spec.grid:
            stretched = F.interpolate(table.permute(2, 0, 1)[None], (h, w), mode=self.spec.resampling, align_corners=False)
            table = stretched[0].permute(1, 2, 0)
        table = table.reshape(1, h * w, -1)
        return table[0] if t == 1 else (table + self._time[:t, None]).flatten(0, 1)

    def _turns(self, grids: Sequence[Grid]) -> Tensor:
        """[P, 1, 1, D/2] complex: pair 0, 2, 4 ... of a head turns with the column, pair 1, 3, 5 ... with the row."""
        rows, columns = coordinates(grids, 1)
        position = torch.stack((columns, rows), 1).to(self._inverse)  # [P, 2]
        angle = (position[:, None] * self._inverse[:, None]).flatten(1)  # [P, D/2]
        return torch.polar(torch.ones_like(angle), angle)[:, None, None]


def _frequencies(values: int, base: float) -> Tensor:
    """[values / 2]: 1 / base^(2i / values)."""
    return 1.0 / base ** (torch.arange(0, values, 2, dtype=torch.float32) / values)


def _rotate(heads: Tensor, turns: Tensor) -> Tensor:
    """[P, 2, heads, D], neighbours taken as one complex number, in float32."""
    pairs = torch.view_as_complex(torch.unflatten(heads.float(), -1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2)
