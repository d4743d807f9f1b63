"""The prefix cache, preemption and long-prompt budgets change no token: in-process on real layers, and against transformers' generate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from probes.checkpoint import Checkpoint  # noqa: E402
from runtime.arch import read_arch  # noqa: E402
from runtime.assemble import assemble  # noqa: E402
from runtime.batch import StepContext  # noqa: E402
from runtime.mesh import Mesh  # noqa: E402
from runtime.messages import ImagePatches, Sampling, Submit  # noqa: E402
from runtime.model import MoeModel  # noqa: E402
from runtime.sampler import sample  # noqa: E402
from runtime.scheduler import LongPrompts, Scheduler  # noqa: E402
from runtime.sequence import Sequence  # noqa: E402
from runtime.vision_stage import encode_images  # noqa: E402

ANSWER = 6
IMAGE = 300


def sequence_of(number: int, prompt: Any, answer: int) -> Sequence:
    images, start = [], 0
    patches = prompt.patches
    for t, h, w in prompt.grids:
        start = prompt.tokens.index(IMAGE, start)
        count = t * h * w // 4
        part, patches = patches[: t * h * w], patches[t * h * w :]
        images.append(ImagePatches(part.tobytes(), part.shape[1], (t, h, w), start, count))
        start += count
    positions = b"" if prompt.positions is None else np.ascontiguousarray(prompt.positions, dtype=np.int64).tobytes()
    sampling = Sampling(temperature=0.0)
    return Sequence.of(Submit(number, "0" * 32, prompt.tokens, answer, [], sampling, number, 0, positions, images))


class Served:
    """Prompts through one rank's scheduler and model; `encoded` counts pictures given to the vision tower."""

    def __init__(self, model: MoeModel, blocks: int, **settings: Any) -> None:
        self.model, self.kv = model, model.kv_cache(blocks, 8)
        self.scheduler = Scheduler(self.kv.allocator, 8, settings.pop("max_tokens", 64), 4, **settings)
        self.found = self.preempted = self.encoded = self.step = 0

    def answer(self, prompts: list[Any], together: bool, tokens: int = ANSWER) -> list[list[int]]:
        sequences = [sequence_of(number, prompt, tokens) for number, prompt in enumerate(prompts)]
        for sequence in sequences:
            self.scheduler.submit(sequence)
            if not together:
                self._run()
        self._run()
        assert self.scheduler.allocator.available == self.kv.blocks
        return [s.tokens[s.prompt_length :] for s in sequences]

    @torch.inference_mode()
    def _run(self) -> None:
        while self.scheduler.waiting or self.scheduler.running:
            self.step += 1
            assert self.step < 1000
            plan = self.scheduler.schedule()
            self.found += plan.cached_tokens
            self.preempted += len(plan.preempted)
            for sequence in plan.admitted:
                if images := sequence.images_after(sequence.cached):
                    sequence.encoded(images, encode_images(self.model, images))
                    self.encoded += len(images)
            logits = self.model.forward(assemble(plan, self.model.device), self.kv, StepContext(self.step))
            sampled = iter(sample(logits, [c.sequence for c in plan.chunks if c.samples]))
            self.scheduler.advance(plan)
            for chunk in [c for c in plan.chunks if c.samples]:
                chunk.sequence.tokens.append(next(sampled).token)
                if chunk.sequence.generated == chunk.sequence.max_tokens:
                    self.scheduler.remove(chunk.sequence)


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> MoeModel:
    checkpoint = Checkpoint.open(request.getfixturevalue(f"tiny_{request.param}").path)
    return MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.alone())


FAMILIES = pytest.mark.parametrize(("model", "tiny"), [(f, f) for f in ("qwen3_moe", "qwen3_vl_moe")], indirect=True)


def conversations(prompts: list[Any]) -> list[Any]:
    """Every prompt, again, and continued: text after an image keeps the image's positions."""
    continued = []
    for prompt in prompts:
        more = [11, 12, 13, 14, 15]
        positions = prompt.positions
        if positions is not None:
            after = positions.max() + 1 + np.arange(len(more))
            positions = np.concatenate((positions, np.broadcast_to(after, (3, len(more)))), axis=1)
        continued.append(replace(prompt, tokens=prompt.tokens + more, positions=positions))
    return [*prompts, *prompts, *continued]


@FAMILIES
def test_found_prefixes_give_the_same_tokens(model: MoeModel, tiny: Any) -> None:
    prompts = conversations(tiny.prompts)
    plain = Served(model, 200).answer(prompts, together=False)
    cached = Served(model, 200, prefix_cache=True)
    assert cached.answer(prompts, together=False) == plain
    assert cached.found > 100
    pictures = sum(len(prompt.grids) for prompt in tiny.prompts)
    assert cached.encoded < 3 * pictures or not pictures, "a picture in the found prefix is not encoded again"


@FAMILIES
def test_all_together_in_a_small_cache_gives_the_same_tokens(model: MoeModel, tiny: Any) -> None:
    """Chunks, preemption, eviction, and long prompts on a budget of their own, all at once."""
    prompts = [prompt for one in tiny.prompts for prompt in conversations([one])]
    plain = Served(model, 200).answer(prompts, together=False, tokens=20)
    longest = max(len(p.tokens) for p in prompts) + 20
    crowded = Served(model, longest // 8 + 3, max_tokens=10, prefix_cache=True, long=LongPrompts(above=16, tokens=4))
    assert crowded.answer(prompts, together=True, tokens=20) == plain
    assert crowded.found and crowded.preempted


@pytest.mark.parametrize(("model", "tiny"), [("qwen3_vl_moe", "qwen3_vl_moe")], indirect=True)
def test_another_picture_in_the_same_words_is_another_prompt(model: MoeModel, tiny: Any) -> None:
    one = tiny.prompts[1]
    other = replace(one, patches=-one.patches)
    plain = Served(model, 200).answer([one, other], together=False)
    cached = Served(model, 200, prefix_cache=True)
    assert cached.answer([one, other], together=False) == plain
    assert plain[0] != plain[1] and cached.encoded == 2


@pytest.mark.parametrize(("model", "tiny"), [("qwen3_moe", "qwen3_moe")], indirect=True)
def test_found_prefixes_equal_transformers_generate(model: MoeModel, tiny: Any) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(tiny.path).eval()
    cached = Served(model, 200, prefix_cache=True)
    ours = cached.answer([*tiny.prompts, *tiny.prompts], together=False)
    assert cached.found
    for prompt, answer in zip([*tiny.prompts, *tiny.prompts], ours, strict=True):
        ids = torch.tensor([prompt.tokens])
        theirs = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=ANSWER, do_sample=False, eos_token_id=None)
        assert theirs[0, len(prompt.tokens) :].tolist() == answer
