"""The processes that train together, if torchrun started several: each takes a part of every batch, gradients are averaged."""

import os

import torch
from torch import distributed


def join() -> tuple[int, int]:
    """This process's rank and the number of processes; (0, 1) without torchrun."""
    if "WORLD_SIZE" not in os.environ:
        return 0, 1
    distributed.init_process_group("gloo")
    return distributed.get_rank(), distributed.get_world_size()


def average_gradients(weights: list[torch.nn.Parameter]) -> None:
    """Make every process's gradients the mean of all; a weight some process did not use counts as zero there."""
    if not distributed.is_initialized():
        return
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    flat = torch.cat([weight.grad.flatten() for weight in weights])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    for weight, mean in zip(weights, flat.split([weight.numel() for weight in weights]), strict=True):
        weight.grad.copy_(mean.view_as(weight))
