"""Rotary positions of a batch, computed once a step and shared by its layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from runtime.arch import RopeSpec, YarnSpec


class Rope:
    """Inverse frequencies, and which of the position rows t, h, w each frequency turns with.

    Formula: transformers 5.24, Qwen3VLMoeTextRotaryEmbedding: frequency i turns with h where i = 1, 4, 7 ... below 3 * sections[1],
    with w where i = 2, 5, 8 ... below 3 * sections[2], else with t.
    """

    def __init__(self, spec: RopeSpec, device: torch.device) -> None:
        exponent = torch.arange(0, spec.dim, 2, dtype=torch.float32) / spec.dim
        inverse = 1.0 / spec.theta**exponent
        self.strength = 1.0
        if spec.yarn is not None:
            inverse, self.strength = stretched(inverse, spec, spec.yarn), spec.yarn.attention_factor
        self.inverse = inverse.to(device)  # [D/2]
        axis = torch.zeros(spec.dim // 2, dtype=torch.int64)
        for row in (1, 2):
            if spec.sections is not None:
                axis[row : spec.sections[row] * 3 : 3] = row
        self.axis = axis.to(device) if spec.sections is not None else None

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions [3, T] -> (cos, sin), each [T, 1, D]; sin is negated in its first half, as `rotate` wants it."""
        turned = positions[0, :, None] if self.axis is None else positions[self.axis].t()  # [T, 1] or [T, D/2]
        angle = turned.to(torch.float32) * self.inverse
        cos, sin = angle.cos() * self.strength, angle.sin() * self.strength
        return torch.cat((cos, cos), -1).to(dtype).unsqueeze(1), torch.cat((-sin, sin), -1).to(dtype).unsqueeze(1)


def stretched(inverse: Tensor, spec: RopeSpec, yarn: YarnSpec) -> Tensor:
    """Frequencies that turn less than `beta_slow` times within the original positions are divided by the factor, those that turn more
    than `beta_fast` times are not, and between them a linear ramp over the index (Peng et al. 2023, section 3.2)."""

    def index_of(turns: float) -> float:
        return spec.dim * math.log(yarn.original / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = index_of(yarn.beta_fast), index_of(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    high += 0.001 if low == high else 0.0
    ramp = ((torch.arange(spec.dim // 2, dtype=inverse.dtype) - low) / (high - low)).clamp(0, 1)
    return inverse / yarn.factor * ramp + inverse * (1 - ramp)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tensor:
    """heads [T, N, D] -> out, rotated: the halves (a, b) become (a cos - b sin, b cos + a sin)."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * cos, swapped, sin, out=out)


def pairs_to_halves(heads: Tensor) -> Tensor:
    """[..., D] whose pairs lie side by side -> the order `rotate` wants. Queries and keys alike, so their products do not change."""
    return torch.cat((heads[..., ::2], heads[..., 1::2]), -1)
