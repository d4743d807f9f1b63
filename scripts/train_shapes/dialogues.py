"""Training conversations: questions drawn by weighted kind, and their packing into padded batches."""

import random
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from probes.traffic.questions import PICTURE_KINDS, Question, picture_question
from probes.traffic.scenes import Scene, held_out, random_scene
from probes.traffic.texts import TEXT_KINDS, text_question

CELLS = 9  # picture tokens of one picture
LENGTH = 104  # tokens a conversation may have
TURNS = 6


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns about one picture or none. Independent turns do not see each other: each is a first turn of its own."""

    scene: Scene | None
    turns: list[Question]
    independent: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Conversations of B rows and T columns, padded at the right."""

    ids: torch.Tensor  # (B, T) token ids
    positions: torch.Tensor  # (3, B, T) time, height, width
    segments: torch.Tensor  # (B, T) 0: seen by every later token, n > 0: seen by the same segment, -1: padding
    pictured: torch.Tensor  # (B, T) bool, picture tokens
    answers: torch.Tensor  # (B, T) number of the turn whose answer holds this token, -1 elsewhere
    kinds: list[str]  # by number of the turn
    scenes: list[Scene]  # one for each row that has picture tokens

    @property
    def mask(self) -> torch.Tensor:
        """(B, 1, T, T) bool: which token may attend to which."""
        length = self.ids.shape[1]
        key, query = self.segments[:, None, None, :], self.segments[:, None, :, None]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return causal & ((key == 0) | (key == query))


class Packer:
    """Turns conversations into token rows exactly as the chat template does."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.cache: dict[str, list[int]] = {}
        self.opening = self.encode("<|im_start|>user\n")
        self.picture = self.encode("<|vision_start|>" + "<|image_pad|>" * CELLS + "<|vision_end|>")
        self.middle = self.encode("<|im_end|>\n<|im_start|>assistant\n")
        self.newline = self.encode("\n")
        self.stop = self.encode("<|im_end|>")

    def encode(self, text: str) -> list[int]:
        """Token ids, remembered."""
        if text not in self.cache:
            self.cache[text] = self.tokenizer.encode(text, add_special_tokens=False)
        return self.cache[text]

    def pack(self, conversations: list[Conversation]) -> Batch:
        """One padded batch."""
        kinds: list[str] = []
        rows = [self._row(conversation, kinds) for conversation in conversations]
        length = max(len(row[0]) for row in rows)
        pad = self.tokenizer.pad_token_id
        ids, segments, answers = (
            torch.tensor([row[index] + [fill] * (length - len(row[index])) for row in rows]) for index, fill in ((0, pad), (1, -1), (2, -1))
        )
        positions = torch.tensor([[axis + [0] * (length - len(axis)) for axis in row[3]] for row in rows]).transpose(0, 1)
        pictured = ids == self.picture[1]
        return Batch(ids, positions, segments, pictured, answers, kinds, [talk.scene for talk in conversations if talk.scene])

    def _row(self, conversation: Conversation, kinds: list[str]) -> tuple[list[int], list[int], list[int], list[list[int]]]:
        """Ids, segments, answer numbers and the three position axes of one conversation."""
        ids = self.opening + (self.picture if conversation.scene else [])
        segments, answers = [0] * len(ids), [-1] * len(ids)
        axes = self._prefix_positions(conversation.scene is not None)
        start = max(axis[-1] for axis in axes) + 1
        for number, turn in enumerate(conversation.turns):
            answer = self.encode(turn.answer) + self.stop
            again = self.newline + self.opening if number and not conversation.independent else []
            question = again + self.encode(turn.prompt) + self.middle
            if len(ids) + len(question) + len(answer) > LENGTH and number:
                continue
            ids = ids + question + answer
            answers += [-1] * len(question) + [len(kinds)] * len(answer)
            size = len(question) + len(answer)
            segments += [number + 1 if conversation.independent else 1] * size
            first = start if conversation.independent else max(axes[0][-1], axes[1][-1], axes[2][-1]) + 1
            for axis in axes:
                axis.extend(range(first, first + size))
            kinds.append(turn.kind)
        return ids, segments, answers, axes

    def _prefix_positions(self, pictured: bool) -> list[list[int]]:
        """Positions of what precedes the first prompt: a picture advances them by its side, three."""
        opening = list(range(len(self.opening)))
        if not pictured:
            return [list(opening) for _ in range(3)]
        start = len(opening) + 1
        grid = ([start] * CELLS, [start + cell // 3 for cell in range(CELLS)], [start + cell % 3 for cell in range(CELLS)])
        return [[*opening, start - 1, *cells, start + 3] for cells in grid]


def training_scene(rng: random.Random, crowd: int) -> Scene:
    """A scene of one to `crowd` items that is not held out for the test."""
    while True:
        scene = random_scene(rng, rng.randint(1, crowd))
        if not held_out(scene.key):
            return scene


class Sampler:
    """Draws conversations; `weights` says how often each kind is asked, `crowd` how many items a scene may hold."""

    def __init__(self, seed: int, weights: dict[str, float], crowd: int = 4, independent: float = 0.8) -> None:
        self.rng = random.Random(seed)
        self.weights = weights
        self.crowd = crowd
        self.independent = independent

    def conversations(self, number: int) -> list[Conversation]:
        """`number` conversations, never on a held-out scene or with a held-out text prompt."""
        return [self._conversation() for _ in range(number)]

    def _conversation(self) -> Conversation:
        picture, text = (sum(self.weights[kind] for kind in kinds) for kinds in (PICTURE_KINDS, TEXT_KINDS))
        alone = self.rng.random() < self.independent
        scene = training_scene(self.rng, self.crowd) if self.rng.random() * (picture + text) < picture else None
        return Conversation(scene, self._turns(scene, PICTURE_KINDS if scene else TEXT_KINDS), alone)

    def _turns(self, scene: Scene | None, kinds: tuple[str, ...]) -> list[Question]:
        """More turns than the packer has room for."""
        turns: list[Question] = []
        weights = [self.weights[kind] for kind in kinds]
        while len(turns) < TURNS:
            kind = self.rng.choices(kinds, weights)[0]
            turn = picture_question(scene, self.rng, kind) if scene else text_question(self.rng, kind)
            if turn is not None and (scene or kind == "fact" or not held_out(turn.prompt)):
                turns.append(turn)
        return turns
