"""The prompts of a mix, as request bodies that are encoded once and sent many times: the client shares its CPUs with the server."""

from __future__ import annotations

import base64
import io
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from probes.traffic.plan import TrafficPlan
from probes.traffic.questions import Question, picture_questions
from probes.traffic.scenes import Scene, draw, held_out, random_scene
from probes.traffic.texts import TEXT_KINDS, text_question

PICTURES = 32  # different pictures of one run of traffic
PROMPTS = 192  # different prompts of each kind
ASKED_TEXT_KINDS = tuple(kind for kind in TEXT_KINDS if kind != "fact")  # greetings were all seen in training

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request ready to send. `expected` is the only right answer, or None where an answer is not judged."""

    kind: str  # text | image
    question: str
    body: bytes
    expected: str | None


class Prompts:
    """The endless sequence of prompts of a plan. Pictures and text prompts are ones the shipped model was never trained on."""

    def __init__(self, plan: TrafficPlan, model: str) -> None:
        self._plan = plan
        self._rng = random.Random(f"traffic {plan.seed}")
        self._head = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        self._head |= {"max_tokens": plan.tokens, "temperature": 0, "seed": plan.seed}
        if plan.ignore_eos:
            self._head |= {"ignore_eos": True}
        self._image_share = 0.0 if plan.mix == "text" else plan.image_share
        self._pool: dict[str, list[Prompt]] = {}
        self._salt, self._given = secrets.token_hex(8), 0
        if self._image_share > 0:
            self._pool["image"] = self._picture_prompts()
        if self._image_share < 1:
            self._pool["text"] = [self._text_prompt() for _ in range(PROMPTS)]

    def next(self) -> Prompt:
        kind = "image" if self._rng.random() < self._image_share else "text"
        prompt = self._rng.choice(self._pool[kind])
        return prompt if self._plan.reuse else self._apart(prompt)

    def _apart(self, prompt: Prompt) -> Prompt:
        """The same, but no server that knows `cache_salt` (vLLM, ours) answers it from the cache of an earlier one: a pool of prompts
        that is sent over and over would otherwise measure the cache."""
        self._given += 1
        salt = f',"cache_salt":"{self._salt}-{self._given}"}}'
        return replace(prompt, body=prompt.body.removesuffix(b"}") + salt.encode())

    def _picture_prompts(self) -> list[Prompt]:
        """PROMPTS questions spread over PICTURES scenes."""
        scenes = [self._scene() for _ in range(PICTURES)]
        urls = [data_url(scene) for scene in scenes]
        asked = [self._questions(partial(self._picture_question, scenes[index % PICTURES])) for index in range(PROMPTS)]
        return [self._prompt(turns, urls[index % PICTURES]) for index, turns in enumerate(asked)]

    def _text_prompt(self) -> Prompt:
        return self._prompt(self._questions(self._text_question), None)

    def _picture_question(self, scene: Scene) -> Question:
        return self._rng.choice(picture_questions(scene, self._rng))

    def _questions(self, ask: Callable[[], Question]) -> list[Question]:
        """The turns of one conversation; the last one is what is asked."""
        turns = self._plan.turns if self._plan.mix == "prefill-heavy" else 1
        return [ask() for _ in range(turns)]

    def _scene(self) -> Scene:
        while True:
            scene = random_scene(self._rng, self._rng.randint(1, 4))
            if held_out(scene.key) and picture_questions(scene, self._rng):
                return scene

    def _text_question(self) -> Question:
        while True:
            question = text_question(self._rng, self._rng.choice(ASKED_TEXT_KINDS))
            if held_out(question.prompt):
                return question

    def _prompt(self, turns: list[Question], picture: str | None) -> Prompt:
        asked = turns[-1]
        messages: list[Message] = []
        for turn in turns[:-1]:
            messages += [{"role": "user", "content": turn.prompt}, {"role": "assistant", "content": turn.answer}]
        messages.append({"role": "user", "content": asked.prompt})
        if picture is not None:
            words = {"type": "text", "text": messages[0]["content"]}
            messages[0]["content"] = [{"type": "image_url", "image_url": {"url": picture}}, words]
        body = msgspec.json.encode(self._head | {"messages": messages})
        judged = self._plan.mix == "shapes"
        return Prompt("text" if picture is None else "image", asked.kind, body, asked.answer if judged else None)


def data_url(scene: Scene) -> str:
    """The picture of a scene as a PNG data URL."""
    buffer = io.BytesIO()
    draw(scene).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
