"""Muon: momentum whose matrices are orthogonalised before each step (Jordan et al. 2024), here also for stacks of expert matrices."""

import torch


def orthogonalise(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Newton-Schulz iteration that moves all singular values of each matrix (..., rows, columns) towards 1."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """For weights of two or three dimensions; the leading one of three is a stack of independent matrices."""

    def __init__(self, params: list[torch.nn.Parameter], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.05) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update with Nesterov momentum."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                buffer = state.setdefault("momentum", torch.zeros_like(weight))
                buffer.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonalise(weight.grad.lerp(buffer, group["momentum"]))
                scale = max(1.0, weight.shape[-2] / weight.shape[-1]) ** 0.5
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)
