"""Attention with sinks: a learned logit per head takes its share of the softmax and gives nothing (gpt-oss)."""

from __future__ import annotations

import torch
from torch import Tensor


def attend_with_sinks(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sinks: Tensor) -> Tensor:
    """query [A, B, n, D], key and value [A, B or 1, context, D], sinks broadcastable to [A, B, n, 1] -> [A, B, n, D].

    mask: True where visible, or added to the logits; broadcastable to [A, B, n, context]. Softmax in float32.
    """
    logits = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-1, -2)).float()
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    sinks = sinks.float()
    highest = torch.maximum(logits.amax(-1, keepdim=True), sinks)
    shares = (logits - highest).exp()
    shares = shares / (shares.sum(-1, keepdim=True) + (sinks - highest).exp())
    return torch.matmul(shares.to(value.dtype), value)
