"""What a validation is about: one loaded model, its token ids, and the reference it is held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.local import LocalSequence, load_local
from runtime.model import MoeModel
from runtime.taps.capture import Capture
from runtime.taps.compare import FLOAT32_LIMIT, HALF_LIMIT, compare
from runtime.taps.tapped_model import TappedModel, record
from runtime.validation.document import Check
from traces.errors import UsageError

PROBE_TOKENS = 128
TEXTS = (
    "The capital of France is",
    "What is 3 + 4?",
    "Once upon a time there was a small robot who",
    "def add(a, b):\n    return",
)
FULL_LIMIT = 1e-4  # relative L2 between two ways to compute the same in float32 (DESIGN, section 9)


@dataclass(slots=True)
class Subject:
    """`reference`: taps to compare with, or None; `outside`: the transformers model they came from, or None."""

    model: MoeModel
    ids: list[int]
    float8: bool = False
    reference: Capture | None = None
    outside: Any = None
    tokenizer: Any = None
    room: int = 4096  # most tokens of one sequence
    captured: Capture | None = field(default=None)

    @property
    def exact(self) -> bool:
        """Computed and cached in float32."""
        return self.model.dtype == torch.float32 and not self.float8

    @property
    def limit(self) -> float:
        return FULL_LIMIT if self.exact else HALF_LIMIT

    def capture(self) -> Capture:
        """Taps of the probe ids, recorded once."""
        if self.captured is None:
            self.captured = record(TappedModel.over(self.model), self.ids, float8=self.float8)
        return self.captured

    def logits(self, ids: Sequence[int], steps: Sequence[int] = (), scattered: bool = False) -> Tensor:
        """[T, V], on the CPU, of a prompt in steps of so many tokens, and a last one with the rest."""
        sequence = LocalSequence(self.model, len(ids), self.float8, scattered)
        parts, done = [], 0
        for size in [*steps, len(ids)]:
            if done < len(ids):
                parts.append(sequence.feed(ids[done : done + size]))
                done += len(parts[-1])
        return torch.cat(parts).cpu()

    def equal_in_steps(self, name: str, ids: list[int], steps: Sequence[int], scattered: bool = False) -> Check:
        """Whether a prompt in steps has the logits of the whole prompt in one. A difference is pursued through the taps, because a
        near-tie of a router is none of the way in which a prompt is cut."""
        whole, parts = self.logits(ids), self.logits(ids, steps, scattered)
        rows = apart(whole, parts)
        worst = float(rows.max())
        if worst <= self.limit:
            return Check(name, "pass", f"{len(ids)} tokens, largest relative error {worst:.1e}", worst, self.limit)
        view = TappedModel.over(self.model)
        limit = FLOAT32_LIMIT if self.exact else HALF_LIMIT
        found = compare(record(view, ids, float8=self.float8), record(view, ids, steps, self.float8), limit)
        first = found.first
        if first is None and not found.visible:
            told = f"{len(found.flipped)} tokens left out: near-ties of a router" if found.flipped else "spread over all, no tap diverges"
            return Check(name, "pass", f"{len(ids)} tokens; {told}", worst, self.limit)
        told = "no tap diverges where routers agree, and answers differ"
        if first is not None:
            told = f"{first.name} diverges by {first.relative:.2g} from position {first.first_hit} on"
        return Check(name, "fail", f"{told}; logits by {worst:.2g}", worst, self.limit)

    def words(self, ids: Sequence[int]) -> str:
        """As text where there is a tokenizer."""
        return str(self.tokenizer.decode(list(ids))) if self.tokenizer is not None else " ".join(map(str, ids))

    def prompts(self) -> list[list[int]]:
        """A few short ones: sentences where there is a tokenizer that knows the model's tokens, else random ids."""
        vocab = self.model.arch.vocab
        found = [_tokens(self.tokenizer, vocab, text) for text in TEXTS] if self.tokenizer is not None else []
        return [ids for ids in found if ids] or [probe_ids(vocab, 100 + i, 6 + 3 * i) for i in range(len(TEXTS))]


def apart(a: Tensor, b: Tensor) -> Tensor:
    """Relative L2 of each row [T]; inf where a value is not finite."""
    rows = (a.double() - b.double()).norm(dim=1) / a.double().norm(dim=1).clamp_min(1e-300)
    return torch.where(rows.isnan(), torch.inf, rows)


def open_subject(path: str | Path, dtype: torch.dtype, device: str, float8: bool, ids: list[int] | None, seed: int, room: int) -> Subject:
    """Loads the model. CheckpointError for what cannot be served, UsageError for ids outside its vocabulary."""
    model = load_local(path, dtype, device)
    most = model.arch.max_positions
    ids = probe_ids(model.arch.vocab, seed, min(PROBE_TOKENS, most)) if ids is None else ids
    if len(ids) > most:
        raise UsageError(f"{len(ids)} token ids for a model of {most} positions", "give fewer")
    return Subject(model, ids, float8, tokenizer=tokenizer_of(Path(path)), room=min(room, most))


def probe_ids(vocab: int, seed: int, count: int = PROBE_TOKENS) -> list[int]:
    """Random ids: they reach more experts than any sentence of that length."""
    found: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return found


def tokenizer_of(path: Path) -> Any:
    """The checkpoint's own; None where it has no tokenizer.json that can be read."""
    from tokenizers import Tokenizer

    file = path / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # noqa: BLE001 the library raises plain Exception
        return None


def encoded(tokenizer: Any, vocab: int, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts. UsageError without a tokenizer, and for a text without a token that the embedding has."""
    if tokenizer is None:
        raise UsageError("the model has no tokenizer that could read a prompt", "give --ids, or a folder with tokenizer.json")
    found = [_tokens(tokenizer, vocab, text) for text in texts]
    for text, ids in zip(texts, found, strict=True):
        if not ids:
            raise UsageError(f"the prompt {text!r} has no token that the model knows", "give another, or the tokenizer that belongs to it")
    return found


def _tokens(tokenizer: Any, vocab: int, text: str) -> list[int]:
    """Ids that the embedding lacks are left out."""
    return [i for i in tokenizer.encode(text).ids if i < vocab]
