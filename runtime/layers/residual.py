"""Attention residuals: the parts of a layer read a mix of frozen streams and the running one.

With rows v_e (the frozen streams in order, the running one last), norm weight w and projection p: probabilities softmax_e of
sum_d(v_e[d] / rms(v_e) * w[d] p[d]), and the mix is their weighted sum of the rows as they are, not normalised. Formula: Kimi K3, as two
independent open implementations compute it (colibri c/kimi_k3.c, SGLang's kimi_k3 model).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ResidualQuery:
    """What one place asks of the streams: norm weight times projection, [H] float32."""

    query: Tensor
    eps: float

    @classmethod
    def of(cls, targets: dict[str, Tensor], at: str, eps: float) -> ResidualQuery | None:
        """From the targets `at`.norm [H] and `at`.proj [1, H]; None where the layer has none."""
        if f"{at}.norm" not in targets:
            return None
        return cls(targets[f"{at}.norm"] * targets[f"{at}.proj"][0], eps)

    def mix(self, frozen: list[Tensor], running: Tensor) -> Tensor:
        """frozen: [T, H] each, running [T, H] -> [T, H]. Computed in float32."""
        rows = torch.stack((*frozen, running), 1).float()  # [T, E, H]
        length = torch.rsqrt(rows.square().mean(-1) + self.eps)  # [T, E]
        share = ((rows @ self.query) * length).softmax(-1)
        return torch.bmm(share.unsqueeze(1), rows).squeeze(1).to(running.dtype)


@dataclass(slots=True)
class Streams:
    """The frozen streams of one forward pass, oldest first. They travel with the running one over a pipeline boundary."""

    frozen: list[Tensor] = field(default_factory=list)

    def read(self, query: ResidualQuery | None, running: Tensor) -> Tensor:
        """What a part of a layer sees: the running stream alone where nothing is frozen or the layer does not mix."""
        if query is None or not self.frozen:
            return running
        return query.mix(self.frozen, running)
