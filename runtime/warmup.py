"""First steps before the server answers: allocations, thread pools and first-touch pages are paid here, not by the first request."""

from __future__ import annotations

import torch

from runtime.assemble import assemble
from runtime.batch import StepContext
from runtime.kv import KVCache
from runtime.messages import ImagePatches, Sampling, Submit
from runtime.model import MoeModel
from runtime.sampler import sample
from runtime.scheduler import Plan, Scheduler
from runtime.sequence import Sequence
from runtime.vision_stage import encode_images

PROMPT = 32
STEPS = 3


def warm_up(model: MoeModel, kv: KVCache, replica: int, max_tokens: int) -> None:
    """A short prompt and a few decode steps on every rank, and a small image if the model sees. All ranks call it together.

    The ranks of a replica make up the same batch without asking each other, since its tokens are not drawn.
    """
    _encode_small_image(model)
    scheduler = Scheduler(kv.allocator, kv.block_size, max_tokens, 1)
    length = max(1, min(PROMPT, max_tokens, kv.blocks * kv.block_size - STEPS))
    tokens = [(7 * i + replica) % model.arch.vocab for i in range(length)]  # different tokens, so that every expert is likely hit
    sequence = Sequence.of(Submit(0, "0" * 32, tokens, STEPS, [], Sampling(temperature=0.0), 0, 0))
    scheduler.submit(sequence)
    for _ in range(STEPS):
        _step(model, kv, scheduler.schedule(), scheduler)
    scheduler.remove(sequence)


@torch.inference_mode()
def _step(model: MoeModel, kv: KVCache, plan: Plan, scheduler: Scheduler) -> None:
    logits = model.forward(assemble(plan, model.device), kv, StepContext(step=0))
    for chunk in plan.chunks:
        if logits.shape[0]:
            sample(logits, [chunk.sequence])
        chunk.sequence.tokens.append(chunk.sequence.tokens[-1])
    scheduler.advance(plan)
    model.mesh.settle()


def _encode_small_image(model: MoeModel) -> None:
    vision = model.arch.vision
    if vision is not None and model.tower is not None:
        grid = (1, 2 * vision.merge, 2 * vision.merge)
        patches = grid[1] * grid[2]
        encode_images(model, [ImagePatches(bytes(4 * patches * vision.patch_values), vision.patch_values, grid, 0, 4)])
