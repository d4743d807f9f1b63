"""Tiny random checkpoints saved by transformers, their reference logits, and real ranks that compute the same prompts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

REPO = Path(__file__).parents[2]
RANK_PROGRAM = Path(__file__).with_name("rank_program.py")
IMAGE, START, END = 300, 302, 303

TEXT = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # wide: logits must depend visibly on every part
}
VISION = {
    "depth": 3,
    "hidden_size": 48,
    "num_heads": 3,
    "intermediate_size": 64,
    "patch_size": 16,
    "out_hidden_size": 64,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 1],
    "initializer_range": 0.2,
}


@pytest.fixture(scope="session")
def published() -> Callable[[str], dict[str, Any]]:
    """Values of published configurations by name (tests/runtime/published): what a planner reads of them."""

    def read(name: str) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((Path(__file__).parent / "published" / f"{name}.json").read_text())
        return config

    return read


@dataclass
class Prompt:
    """One sequence, as ForwardBatch wants it; grids (t, h, w) in patches."""

    tokens: list[int]
    positions: np.ndarray | None = None  # [3, T]; None: plain text
    patches: np.ndarray | None = None
    grids: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass
class Tiny:
    """A checkpoint, prompts, and what transformers answers: logits [T, V] for each prompt."""

    path: Path
    prompts: list[Prompt]
    logits: list[Any]


def _save(model: Any, path: Path) -> None:
    """Random but lively weights: norms away from 1, biases away from 0."""
    import torch

    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    model.save_pretrained(path, max_shard_size="100KB")


def _reference(model: Any, prompts: list[Prompt], image: int = IMAGE) -> list[Any]:
    import torch

    logits = []
    for prompt in prompts:
        ids = torch.tensor([prompt.tokens])
        extra = {}
        if prompt.patches is not None:
            extra = {
                "pixel_values": torch.from_numpy(prompt.patches),
                "image_grid_thw": torch.tensor(prompt.grids),
                "mm_token_type_ids": (ids == image).int(),
            }
        with torch.no_grad():
            logits.append(model(input_ids=ids, **extra).logits[0])
        if hasattr(model.model, "rope_deltas"):
            model.model.rope_deltas = None
    return logits


def _text_prompts(seed: int, lengths: list[int]) -> list[Prompt]:
    rng = np.random.default_rng(seed)
    return [Prompt(rng.integers(0, 290, n).tolist()) for n in lengths]


def _image_prompt(seed: int, grids: list[tuple[int, int, int]]) -> Prompt:
    from runtime.images import mrope_positions

    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 290, 5).tolist()
    for t, h, w in grids:
        tokens += [START, *[IMAGE] * (t * h * w // 4), END, *rng.integers(0, 290, 3).tolist()]
    positions = mrope_positions(np.array(tokens), grids, IMAGE, 2)
    patches = rng.uniform(-1, 1, (sum(t * h * w for t, h, w in grids), 3 * 2 * 16 * 16)).astype(np.float32)
    return Prompt(tokens, positions, patches, grids)


@pytest.fixture(scope="session")
def tiny_qwen3_moe(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """One dense layer among mixtures; router weights not renormalised."""
    transformers = pytest.importorskip("transformers")
    import torch

    torch.manual_seed(1)
    config = transformers.Qwen3MoeConfig(**TEXT, norm_topk_prob=False, mlp_only_layers=[1], attention_bias=True)
    model = transformers.Qwen3MoeForCausalLM(config).float().eval()
    path = tmp_path_factory.mktemp("qwen3_moe")
    _save(model, path)
    prompts = _text_prompts(11, [37, 1, 16, 5, 44])
    return Tiny(path, prompts, _reference(model, prompts))


@pytest.fixture(scope="session")
def tiny_qwen3_vl_moe(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    transformers = pytest.importorskip("transformers")
    import torch

    torch.manual_seed(2)
    rope = {"rope_type": "default", "rope_theta": 5e4, "mrope_section": [3, 3, 2], "mrope_interleaved": True}
    config = transformers.Qwen3VLMoeConfig(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config=VISION,
        image_token_id=IMAGE,
        video_token_id=301,
        vision_start_token_id=START,
        vision_end_token_id=END,
        tie_word_embeddings=False,
    )
    model = transformers.Qwen3VLMoeForConditionalGeneration(config).float().eval()
    path = tmp_path_factory.mktemp("qwen3_vl_moe")
    _save(model, path)
    prompts = [*_text_prompts(12, [21]), _image_prompt(13, [(1, 6, 6)]), _image_prompt(14, [(1, 4, 8), (1, 2, 6)])]
    prompts += [*_text_prompts(15, [3]), _image_prompt(16, [(1, 10, 4)])]
    return Tiny(path, prompts, _reference(model, prompts))


@pytest.fixture(scope="session")
def tiny_shapes_moe() -> Tiny:
    """The shipped model, asked about pictures and without any."""
    transformers = pytest.importorskip("transformers")
    import torch

    from probes.traffic.questions import evaluation_pictures
    from probes.traffic.scenes import draw
    from runtime.images import ImageSettings, mrope_positions, preprocess
    from runtime.shipped import shapes_moe

    path = Path(shapes_moe())
    if not (path / "config.json").exists():
        pytest.skip("the shipped checkpoint is not in this tree")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    image, settings = tokenizer.convert_tokens_to_ids("<|image_pad|>"), ImageSettings.read(path)
    prompts = []
    for scene, question in [*evaluation_pictures(number=4)[:4], (None, None)]:
        content = [{"type": "image"}] * bool(scene) + [{"type": "text", "text": question.prompt if question else "What is 3 + 4?"}]
        text = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
        if scene is None:
            prompts.append(Prompt(tokenizer(text)["input_ids"]))
            continue
        patches, grid = preprocess(draw(scene), settings)
        tokens = tokenizer(text.replace("<|image_pad|>", "<|image_pad|>" * (len(patches) // 4)))["input_ids"]
        prompts.append(Prompt(tokens, mrope_positions(np.array(tokens), [grid], image, settings.merge), patches, [grid]))
    model = transformers.Qwen3VLMoeForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    return Tiny(path, prompts, _reference(model, prompts, image))


@pytest.fixture
def tiny(request: pytest.FixtureRequest) -> Tiny:
    """The checkpoint of the family given by indirect parametrisation."""
    return request.getfixturevalue(f"tiny_{request.param}")


_RESULTS: dict[tuple[Path, int], list[Any]] = {}


@pytest.fixture
def ranks(tmp_path: Path):
    """ranks(tiny, world): what each rank of `rank_program.py` computed. Run once for each checkpoint and world."""
    import torch

    def run(tiny: Tiny, world: int) -> list[Any]:
        key = (tiny.path, world)
        if key not in _RESULTS:
            prompts = [vars(p) for p in tiny.prompts]
            torch.save({"checkpoint": str(tiny.path), "prompts": prompts}, tmp_path / "job.pt")
            environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, str(RANK_PROGRAM), str(tmp_path), str(world)]
            processes = [
                subprocess.Popen([*command, str(rank)], env=environment, cwd=REPO, stderr=subprocess.PIPE, text=True)
                for rank in range(world)
            ]
            errors = [process.communicate(timeout=240)[1] for process in processes]
            assert [process.returncode for process in processes] == [0] * world, "\n".join(errors)
            _RESULTS[key] = [torch.load(tmp_path / f"out{rank}.pt", weights_only=False) for rank in range(world)]
        return _RESULTS[key]

    return run
