"""The model in training: loss with per-layer balance, the optimisers, and running accuracy per kind of question."""

from dataclasses import dataclass

import torch
from crew import average_gradients
from dialogues import Batch
from muon import Muon
from sight import Sight
from swift import SwiftLanguage
from torch.nn import functional
from transformers import Qwen3VLMoeForConditionalGeneration

BALANCE = 0.002  # weight of the balance loss, small enough to leave experts their specialities


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a forward pass gave; `right` says for each turn whether every token of its answer was predicted."""

    loss: torch.Tensor
    cross_entropy: float
    balance: float  # 1 is perfectly even, number of experts / top-k is collapsed
    right: torch.Tensor  # (turns,) bool


class Learner:
    """Runs batches through the language model."""

    def __init__(self, model: Qwen3VLMoeForConditionalGeneration) -> None:
        self.head = model.lm_head
        self.language = SwiftLanguage(model.model.language_model)

    def forward(self, batch: Batch, sight: Sight | None) -> Outcome:
        """Loss and right answers of one batch."""
        wanted = (batch.answers.flatten() >= 0).nonzero()[:, 0]
        target, turn = batch.ids.flatten()[wanted], batch.answers.flatten()[wanted]
        logits = self.head(self.language(batch, sight, wanted - 1))
        cross_entropy = functional.cross_entropy(logits, target)
        mistakes = torch.zeros(len(batch.kinds), dtype=torch.long).index_add_(0, turn, (logits.argmax(-1) != target).long())
        balance = torch.stack([_unevenness(routed) for routed in self.language.routed]).mean()
        return Outcome(cross_entropy + BALANCE * balance, cross_entropy.item(), balance.item(), mistakes == 0)


def _unevenness(logits: torch.Tensor) -> torch.Tensor:
    """Switch-style load balance of one layer's router logits (tokens, experts); 1 when even."""
    chances = logits.softmax(-1)
    chosen = torch.zeros_like(chances).scatter_(1, chances.topk(2).indices, 1.0)
    return (chances.mean(0) * chosen.mean(0)).sum() * chances.shape[1] / 2


class Optimisers:
    """Muon for the matrices of attention and of vision blocks, AdamW for experts, mergers, embeddings, head, routers, norms and biases."""

    def __init__(self, named: list[tuple[str, torch.nn.Parameter]], rate: float = 1.0) -> None:
        matrices = [weight for name, weight in named if _is_matrix(name, weight)]
        others = [weight for name, weight in named if not _is_matrix(name, weight)]
        self.weights = [*matrices, *others]
        self.parts = [Muon(matrices), torch.optim.AdamW(others, lr=2.5e-3, betas=(0.9, 0.98), weight_decay=0.0, fused=True)]
        self.base = [[group["lr"] * rate for group in part.param_groups] for part in self.parts]

    def step(self, loss: torch.Tensor, scale: float) -> None:
        """Backward and one update, learning rates times `scale`."""
        loss.backward()
        average_gradients(self.weights)
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        for part, rates in zip(self.parts, self.base, strict=True):
            for group, rate in zip(part.param_groups, rates, strict=True):
                group["lr"] = rate * scale
            part.step()
            part.zero_grad(set_to_none=True)


def _is_matrix(name: str, weight: torch.nn.Parameter) -> bool:
    return weight.ndim == 2 and not any(part in name for part in ("embed", "lm_head", "gate.weight", "merger"))


class Scores:
    """Running accuracy for each kind of question, measured on fresh training questions before the update."""

    def __init__(self, kinds: tuple[str, ...], memory: float = 0.985) -> None:
        self.memory = memory
        self.value = dict.fromkeys(kinds, 0.0)

    def add(self, kinds: list[str], right: torch.Tensor) -> None:
        """Take in the answers of one batch."""
        for kind, good in zip(kinds, right.tolist(), strict=True):
            self.value[kind] = self.memory * self.value[kind] + (1 - self.memory) * good

    def __str__(self) -> str:
        return " ".join(f"{kind} {100 * value:.0f}" for kind, value in self.value.items())
