"""Answers that keep to a grammar: which tokens may come next (llguidance), one matcher for each sequence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(slots=True)
class Constraint:
    """The grammar's state after the tokens accepted so far."""

    matcher: Any  # llguidance.LLMatcher
    stop: int  # the only token left when the grammar is complete

    @classmethod
    def of(cls, grammar: str, tokenizer: Path, stop: int) -> Constraint:
        """`tokenizer` is the checkpoint's tokenizer.json; `stop` ends an answer. ValueError: the grammar does not fit it."""
        from llguidance import LLMatcher

        matcher = LLMatcher(_tokenizer(tokenizer, stop), grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return cls(matcher, stop)

    def restrict(self, logits: Tensor) -> None:
        """Tokens [vocab] that the grammar forbids here get -inf, in place."""
        allowed = self._allowed(logits.shape[-1])
        logits.masked_fill_(~torch.from_numpy(allowed).to(logits.device), float("-inf"))

    def accept(self, token: int) -> None:
        if token != self.stop:
            self.matcher.consume_token(token)

    def _allowed(self, vocabulary: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        mask = np.zeros(vocabulary, dtype=np.bool_)
        if not self.matcher.is_stopped():
            bits = np.unpackbits(np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
            known = min(vocabulary, len(bits))
            mask[:known] = bits[:known]
        if not mask.any():
            mask[self.stop] = True
        return mask


@lru_cache(maxsize=4)
def _tokenizer(path: Path, stop: int) -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer(path.read_text(), eos_token=stop)
