"""The scheduler with every family: preempted, chunked and batched sequences answer as they do alone, and state slots are given back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from probes.checkpoint import Checkpoint  # noqa: E402
from runtime.arch import read_arch  # noqa: E402
from runtime.assemble import assemble  # noqa: E402
from runtime.batch import StepContext  # noqa: E402
from runtime.mesh import Mesh  # noqa: E402
from runtime.messages import Sampling, Submit  # noqa: E402
from runtime.model import MoeModel  # noqa: E402
from runtime.scheduler import Scheduler  # noqa: E402
from runtime.sequence import Sequence  # noqa: E402

ANSWER = 12


def model_of(folder) -> MoeModel:
    checkpoint = Checkpoint.open(folder)
    return MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.alone())


def serve(
    model: MoeModel, prompts: list[list[int]], blocks: int, sequences: int, step_tokens: int, prefix_cache: bool = False
) -> tuple[list[list[int]], list[Sequence]]:
    """Greedy answers, and the sequences they belong to."""
    kv = model.kv_cache(blocks, 4, sequences)
    scheduler = Scheduler(kv.allocator, 4, step_tokens, sequences, prefix_cache=prefix_cache)
    running = [Sequence.of(Submit(i, "0" * 32, p, ANSWER, [], Sampling(temperature=0.0), 0, 0)) for i, p in enumerate(prompts)]
    for sequence in running:
        scheduler.submit(sequence)
    unfinished = list(running)
    while unfinished:
        plan = scheduler.schedule()
        logits = model.forward(assemble(plan, model.device), kv, StepContext(1))
        scheduler.advance(plan)
        for row, chunk in zip(logits, [c for c in plan.chunks if c.samples], strict=True):
            chunk.sequence.tokens.append(int(row.argmax()))
            if chunk.sequence.generated == ANSWER:
                scheduler.remove(chunk.sequence)
                unfinished.remove(chunk.sequence)
    assert kv.allocator.available == blocks
    return [s.tokens[s.prompt_length :] for s in running], running


@pytest.mark.parametrize("name", ["kimi_linear", "kimi_k3", "deepseek_v3", "gpt_oss"])
def test_preemption_and_reused_slots_do_not_change_the_answers(families, name):
    """Few blocks, few slots, small steps: states of sequences that begin again, and of those that take over a slot, start empty."""
    family = families[name]
    model, prompts = model_of(family.path), [p[:17] for p in family.prompts]
    alone = [serve(model, [prompt], 64, 1, 64)[0][0] for prompt in prompts]
    together, served = serve(model, prompts, 14, 3, 6)
    assert sum(sequence.preemptions for sequence in served) > 0
    assert together == alone


@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_oss"])
def test_a_reused_prefix_does_not_change_the_answers(families, name):
    """Latents, and keys behind a window, of blocks that another prompt computed."""
    family = families[name]
    model, common = model_of(family.path), family.prompts[0][:23]
    prompts = [common + family.prompts[4][n : n + 5] for n in range(3)]
    alone = [serve(model, [prompt], 64, 1, 64)[0][0] for prompt in prompts]
    reused, served = serve(model, prompts, 64, 1, 64, prefix_cache=True)
    assert [sequence.found for sequence in served] == [0, 20, 20]
    assert reused == alone
