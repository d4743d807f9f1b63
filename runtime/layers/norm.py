"""RMS normalisation over the last dimension."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.arch import AttentionSpec


class RmsNorm:
    """weight * x / sqrt(mean(x^2) + eps). The weight may have more than one dimension: [heads, D] norms each head by its own row.

    In float32 it is written weight * sqrt(n) * x / hypot(|x|, sqrt(n * eps)): four operations where torch.rms_norm on the CPU makes
    seven, and half its time from one row to hundreds.
    """

    __slots__ = ("_eps", "_floor", "_scaled", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self._eps = eps
        size = weight.shape[-1]
        self._floor = torch.tensor(math.sqrt(size * eps), device=weight.device)
        self._scaled = weight * math.sqrt(size) if weight.dtype == torch.float32 else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._scaled is None:
            return F.rms_norm(x, x.shape[-1:], None, self._eps).mul_(self.weight)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.div(x, torch.hypot(length, self._floor)).mul_(self._scaled)


def head_norm(query: Tensor, key: Tensor, spec: AttentionSpec, eps: float) -> RmsNorm:
    """Norm weights [D] of query and key heads -> the norm of [..., heads + kv_heads, D], each head by its own row."""
    return RmsNorm(torch.cat((query.expand(spec.heads, -1), key.expand(spec.kv_heads, -1))), eps)


class TokenNorm:
    """All query values of a token are normalised together, and all its key values (MiniMax-M2), on whichever lane they are.

    Weights are of this lane's heads: query [heads * D], key [kv_heads * D]. `widths`: query and key values of a token on all lanes.
    """

    __slots__ = ("_dim", "_eps", "_parts", "_repeats", "_weight", "_widths")

    def __init__(self, query: Tensor, key: Tensor, eps: float, head_dim: int, widths: tuple[int, int], lanes: int) -> None:
        self._weight = torch.cat((query, key))
        self._parts, self._dim, self._eps = (query.shape[0], key.shape[0]), head_dim, eps
        self._widths = torch.tensor(widths, dtype=torch.float32, device=query.device)
        # a key head that several lanes hold counts once
        self._repeats = torch.tensor([query.shape[0] * lanes, key.shape[0] * lanes], device=query.device) / self._widths

    def __call__(self, heads: Tensor, over_lanes: Callable[[Tensor], Tensor]) -> Tensor:
        """[T, heads + kv_heads, D] -> the same, normalised; `over_lanes` sums a tensor over the lanes."""
        values = heads.flatten(1)
        squares = [part.float().square().sum(1) for part in values.split_with_sizes(self._parts, 1)]
        means = over_lanes(torch.stack(squares, 1) / self._repeats) / self._widths  # [T, 2]
        scale = (means + self._eps).rsqrt()
        parts = [scale[:, one : one + 1].expand(-1, width) for one, width in enumerate(self._parts)]
        normed = (values.float() * torch.cat(parts, 1)).to(values.dtype) * self._weight
        return torch.unflatten(normed, 1, (-1, self._dim))
