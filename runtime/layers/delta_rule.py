"""The gated delta rule of `runtime.layers.kda`: one token of many sequences, or many tokens of one in chunks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 16
# e^80 is within float32; the products of two such factors are too, where they are used.
FACTORED_BELOW = 80.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Tokens in order, all float32: query, key, value, log decay [T, heads, D] and strength [T, heads]."""

    query: Tensor
    key: Tensor
    value: Tensor
    decay: Tensor
    strength: Tensor

    def part(self, rows: Tensor | slice) -> Steps:
        return Steps(self.query[rows], self.key[rows], self.value[rows], self.decay[rows], self.strength[rows])


def delta_step(steps: Steps, memory: Tensor) -> Tensor:
    """One token each of N sequences: memory [N, heads, D, D] is moved on in place; -> [N, heads, D]."""
    memory *= steps.decay.exp().unsqueeze(-1)
    key = steps.key.unsqueeze(-2)  # [N, heads, 1, D]
    change = (steps.value.unsqueeze(-2) - key @ memory) * steps.strength[..., None, None]
    memory += key.transpose(-1, -2) @ change
    return (steps.query.unsqueeze(-2) @ memory).squeeze(-2)


def delta_chunks(steps: Steps, memory: Tensor) -> tuple[Tensor, Tensor]:
    """T tokens of one sequence with memory [heads, D, D] -> (out [T, heads, D], the memory behind them).

    Within a chunk of C tokens the rule is a triangular system: with G the cumulative log decays, A[t, s] = b_t (k_t e^G_t) . (k_s e^-G_s)
    for s < t, and U, W the solutions of (I + A) U = b v, (I + A) W = b k e^G, the changes are U - W S (Yang et al. 2024, Gated DeltaNet,
    section 3.3, with a decay per channel).
    """
    count, _, dim = steps.key.shape
    size = min(CHUNK, count)
    query, key, value, decay = (_chunked(x, size) for x in (steps.query, steps.key, steps.value, steps.decay))  # [heads, chunks, C, D]
    strength = _chunked(steps.strength.unsqueeze(-1), size)  # [heads, chunks, C, 1]
    total = decay.cumsum(-2)
    grown = total.exp()
    inner, outer = _products(query, key, total)
    system = torch.eye(size, device=key.device) + (strength * inner).tril(-1)
    right = torch.cat((strength * value, strength * key * grown), -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    fresh, stale = solved.split_with_sizes((dim, dim), -1)
    outer = outer.tril()
    last = total[..., -1:, :]
    leaving = (key * (last - total).exp()).transpose(-1, -2)  # [heads, chunks, D, C]
    asked, kept = query * grown, last.exp().transpose(-1, -2)  # [heads, chunks, C, D], [heads, chunks, D, 1]
    out = torch.empty_like(value)
    for n in range(key.shape[1]):
        change = torch.baddbmm(fresh[:, n], stale[:, n], memory, alpha=-1)
        out[:, n] = torch.baddbmm(asked[:, n] @ memory, outer[:, n], change)
        memory = torch.baddbmm(kept[:, n] * memory, leaving[:, n], change)
    return out.flatten(1, 2)[:, :count].transpose(0, 1), memory


def _chunked(values: Tensor, size: int) -> Tensor:
    """[T, heads, X] -> [heads, chunks, size, X]; zeros behind the end change nothing."""
    values = values.transpose(0, 1)
    padding = -values.shape[1] % size
    if padding:
        values = torch.nn.functional.pad(values, (0, 0, 0, padding))
    return torch.unflatten(values, 1, (-1, size)).contiguous()


def _products(query: Tensor, key: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """sum_d x_t[d] k_s[d] exp(G_t[d] - G_s[d]) for s <= t, of x = key and of x = query: two [heads, chunks, C, C]; s > t is not meant."""
    middle = total[..., total.shape[-2] // 2, None, :]
    away = total - middle
    back, forth = (key * (-away).exp()).transpose(-1, -2), away.exp()
    inner, outer = (key * forth) @ back, (query * forth) @ back
    steep = away.abs().amax((0, 2, 3)) >= FACTORED_BELOW  # chunks whose factors leave float32
    for n in steep.nonzero().flatten().tolist():
        inner[:, n], outer[:, n] = _exact_products(query[:, n], key[:, n], total[:, n])
    return inner, outer


def _exact_products(query: Tensor, key: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """The same of one chunk, from differences of decays: no factor is above one, but C * C * D of them are made."""
    size = total.shape[-2]
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1).unsqueeze(-1)
    share = (total.unsqueeze(-2) - total.unsqueeze(-3)).masked_fill(later, -torch.inf).exp() * key.unsqueeze(-3)  # [heads, C, C, D]
    return (key.unsqueeze(-2) * share).sum(-1), (query.unsqueeze(-2) * share).sum(-1)
