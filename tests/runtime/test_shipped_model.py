"""The shipped checkpoint keeps its promises: small, sharded, multimodal, and right about questions it never saw."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest

from probes.traffic.questions import OFFERED_KINDS, Question, evaluation_pictures
from probes.traffic.scenes import Scene, draw
from probes.traffic.texts import evaluation_texts
from runtime.shipped import shapes_moe

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PICTURE_TOKENS = 9  # a square picture becomes 6 x 6 patches, merged 2 x 2
BATCH = 50
Asked = tuple[Scene | None, Question]


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(shapes_moe())


@pytest.fixture(scope="module")
def processor():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil.from_pretrained(shapes_moe())


@pytest.fixture(scope="module")
def model():
    return transformers.Qwen3VLMoeForConditionalGeneration.from_pretrained(shapes_moe(), dtype=torch.float32).eval()


def prompt_text(tokenizer, scene: Scene | None, question: Question) -> str:
    content = [{"type": "image"}] * bool(scene) + [{"type": "text", "text": question.prompt}]
    text = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
    return text.replace("<|image_pad|>", "<|image_pad|>" * PICTURE_TOKENS)


def model_inputs(model, tokenizer, processor, scenes: Sequence[Scene | None], texts: list[str]) -> dict:
    inputs = dict(tokenizer(texts, padding=True, padding_side="right", return_tensors="pt"))
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == model.config.image_token_id).int()
    pictures = [draw(scene) for scene in scenes if scene]
    return inputs | (dict(processor(images=pictures, return_tensors="pt")) if pictures else {})


def answered_right(model, tokenizer, processor, items: Sequence[Asked]) -> list[bool]:
    """Whether the most likely token is right everywhere in the answer, which is when greedy decoding gives exactly the answer."""
    prompts = [prompt_text(tokenizer, scene, question) for scene, question in items]
    texts = [f"{prompt}{question.answer}<|im_end|>" for prompt, (_, question) in zip(prompts, items, strict=True)]
    inputs = model_inputs(model, tokenizer, processor, [scene for scene, _ in items], texts)
    with torch.no_grad():
        best = model(**inputs).logits.argmax(-1)
    right = []
    for row, prompt in enumerate(prompts):
        start, stop = len(tokenizer(prompt).input_ids), int(inputs["attention_mask"][row].sum())
        right.append(torch.equal(best[row, start - 1 : stop - 1], inputs["input_ids"][row, start:stop]))
    return right


def batches(items: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def test_layout_is_small_and_sharded():
    folder = shapes_moe()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 12_000_000
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = {path.name for path in folder.glob("*.safetensors")}
    assert len(shards) > 2
    assert set(index["weight_map"].values()) == shards
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "preprocessor_config.json"):
        assert (folder / name).is_file()


def test_architecture_is_a_multimodal_mixture_of_experts():
    config = json.loads((shapes_moe() / "config.json").read_text())
    text = config["text_config"]
    assert config["architectures"] == ["Qwen3VLMoeForConditionalGeneration"]
    assert text["num_hidden_layers"] >= 4
    assert text["num_local_experts"] >= 16
    assert text["moe_intermediate_size"] not in (text["hidden_size"], text["hidden_size"] // 2)
    assert config["vision_config"]["deepstack_visual_indexes"]


def test_pictures_never_seen_are_answered_right(model, tokenizer, processor):
    items = evaluation_pictures()
    right = [good for batch in batches(items) for good in answered_right(model, tokenizer, processor, batch)]
    assert len(right) == 200
    assert sum(right) / len(right) >= 0.95
    assert {question.kind for _, question in items} == set(OFFERED_KINDS)


def test_texts_never_seen_are_answered_right(model, tokenizer, processor):
    items: list[Asked] = [(None, question) for question in evaluation_texts()]
    right = [good for batch in batches(items) for good in answered_right(model, tokenizer, processor, batch)]
    assert len(right) == 100
    assert sum(right) / len(right) >= 0.95


def test_greedy_generation_agrees_with_the_batched_measure(model, tokenizer, processor):
    items: list[Asked] = [*evaluation_pictures()[:8], *((None, question) for question in evaluation_texts()[:4])]
    for item in items:
        scene, question = item
        inputs = model_inputs(model, tokenizer, processor, [scene], [prompt_text(tokenizer, scene, question)])
        output = model.generate(**inputs)
        said = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert (said == question.answer) == answered_right(model, tokenizer, processor, [item])[0]


def test_introduces_itself(model, tokenizer, processor):
    question = Question("fact", "Who are you?", "I am the Workbench demo model.")
    assert answered_right(model, tokenizer, processor, [(None, question)]) == [True]
