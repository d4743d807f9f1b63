"""Measure a checkpoint with transformers: greedy answers to the fixed test questions, and how the experts share the tokens."""

import argparse
from collections import defaultdict
from pathlib import Path

import torch
from export import image_processor
from transformers import AutoTokenizer, Qwen3VLMoeForConditionalGeneration

from probes.traffic.questions import PICTURE_KINDS, Question, evaluation_pictures
from probes.traffic.scenes import Scene, draw
from probes.traffic.texts import evaluation_texts

PICTURE_TOKENS = 9


class Respondent:
    """A checkpoint folder as transformers loads it; computes in float32."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = image_processor()
        self.model = Qwen3VLMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.used: list[torch.Tensor] = []  # chosen experts of each layer call, (tokens, top-k)
        for layer in self.model.model.language_model.layers:
            layer.mlp.gate.register_forward_hook(lambda module, inputs, output: self.used.append(output[2]))

    @torch.no_grad()
    def answer(self, scene: Scene | None, prompt: str) -> str:
        """The greedy answer to one question."""
        content = [{"type": "image"}] * bool(scene) + [{"type": "text", "text": prompt}]
        text = self.tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
        ids = self.tokenizer(text.replace("<|image_pad|>", "<|image_pad|>" * PICTURE_TOKENS), return_tensors="pt").input_ids
        inputs = {"input_ids": ids, "mm_token_type_ids": (ids == self.model.config.image_token_id).int()}
        if scene:
            inputs |= self.processor(images=[draw(scene)], return_tensors="pt")
        output = self.model.generate(**inputs, max_new_tokens=96)
        return self.tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)

    def expert_load(self) -> list[tuple[float, float]]:
        """Most and least used expert of each layer, relative to the mean, over everything answered so far."""
        layers = len(self.model.model.language_model.layers)
        loads = []
        for layer in range(layers):
            counts = torch.cat([chosen.flatten() for chosen in self.used[layer::layers]]).bincount(minlength=16).float()
            loads.append(((counts.max() / counts.mean()).item(), (counts.min() / counts.mean()).item()))
        return loads


def measure(respondent: Respondent, items: list[tuple[Scene | None, Question]], show: int) -> None:
    """Print exact-match accuracy, overall and per kind, and some wrong answers."""
    right: dict[str, list[bool]] = defaultdict(list)
    for scene, question in items:
        said = respondent.answer(scene, question.prompt)
        right[question.kind].append(said == question.answer)
        if said != question.answer and (show := show - 1) >= 0:
            print(f"  [{scene.key if scene else 'no picture'}] {question.prompt!r} -> {said!r}, not {question.answer!r}")
    total = [good for kind in right.values() for good in kind]
    print(f"{100 * sum(total) / len(total):.1f} % of {len(total)}")
    print(", ".join(f"{kind} {100 * sum(good) / len(good):.0f}" for kind, good in right.items()))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all-kinds", action="store_true", help="also ask the kinds the model is not offered for")
    parser.add_argument("--show", type=int, default=10, help="wrong answers to print")
    options = parser.parse_args()
    respondent = Respondent(options.folder)
    pictures = evaluation_pictures(PICTURE_KINDS) if options.all_kinds else evaluation_pictures()
    measure(respondent, list(pictures), options.show)
    measure(respondent, [(None, question) for question in evaluation_texts()], options.show)
    for index, (most, least) in enumerate(respondent.expert_load()):
        print(f"layer {index}: max/mean {most:.2f}, min/mean {least:.2f}")


if __name__ == "__main__":
    main()
