"""Which experts a token goes to, and with which weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.arch import RouterSpec
from runtime.weights import ExpertWeights

TINY = 1e-20  # added to the sum that sigmoid weights are divided by (transformers 5.24, DeepseekV3TopkRouter)


def choose(hidden: Tensor, weights: ExpertWeights, spec: RouterSpec) -> tuple[Tensor, Tensor]:
    """hidden [T, H] -> (weights [T, k] in hidden's dtype, experts [T, k])."""
    chosen = _softmax if spec.score == "softmax" else _sigmoid
    shares, experts = chosen(hidden, weights, spec)
    if spec.scale != 1.0:
        shares = shares * spec.scale
    return shares.to(hidden.dtype), experts


def _softmax(hidden: Tensor, weights: ExpertWeights, spec: RouterSpec) -> tuple[Tensor, Tensor]:
    """Renormalised top-k probabilities are the softmax over the top-k logits alone: the common denominator cancels."""
    logits = F.linear(hidden, weights.router, weights.router_bias).float()
    if spec.renormalise:
        top = logits.topk(spec.top_k, -1)
        return top.values.softmax(-1), top.indices
    scores = logits.softmax(-1).topk(spec.top_k, -1)
    return scores.values, scores.indices


def _sigmoid(hidden: Tensor, weights: ExpertWeights, spec: RouterSpec) -> tuple[Tensor, Tensor]:
    """Logits in float32. The selection bias decides who is chosen; the weights are the scores without it."""
    scores = F.linear(hidden.float(), weights.router.float()).sigmoid()
    wanted = scores if weights.select is None else scores + weights.select
    if spec.groups > 1 and spec.top_groups < spec.groups:
        wanted = _within_groups(wanted, spec)
    experts = wanted.topk(spec.top_k, -1).indices
    shares = scores.gather(1, experts)
    if spec.renormalise:
        shares = shares / (shares.sum(-1, keepdim=True) + TINY)
    return shares, experts


def _within_groups(wanted: Tensor, spec: RouterSpec) -> Tensor:
    """Scores [T, E]; -inf outside the best groups."""
    grouped = torch.unflatten(wanted, 1, (spec.groups, -1))
    best = grouped.topk(2, -1).values.sum(-1).topk(spec.top_groups, -1).indices  # [T, top_groups]
    outside = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, False)
    return grouped.masked_fill(outside.unsqueeze(-1), -torch.inf).flatten(1)
