"""Log-probabilities of an answer's tokens, in the two shapes that the OpenAI API has for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runtime.messages import Token
from runtime.server.tokenizer import Tokenizer


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[Token]) -> dict[str, Any] | None:
    """`logprobs` of a chat choice; None where none were asked for."""
    content = [_chat_token(tokenizer, token) for token in tokens if token.logprob is not None]
    return {"content": content} if content else None


def completion_logprobs(tokenizer: Tokenizer, tokens: Iterable[Token], offset: int) -> dict[str, Any] | None:
    """`logprobs` of a completion's choice. `offset`: characters of the text before the first of these tokens."""
    asked = [token for token in tokens if token.logprob is not None]
    if not asked:
        return None
    pieces = [tokenizer.piece(token.token) for token in asked]
    offsets = []
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece)
    return {
        "tokens": pieces,
        "token_logprobs": [token.logprob for token in asked],
        "top_logprobs": [{tokenizer.piece(number): value for number, value in token.top or []} for token in asked],
        "text_offset": offsets,
    }


def _chat_token(tokenizer: Tokenizer, token: Token) -> dict[str, Any]:
    top = [_entry(tokenizer, number, logprob) for number, logprob in token.top or []]
    return {**_entry(tokenizer, token.token, token.logprob or 0.0), "top_logprobs": top}


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    piece = tokenizer.piece(token)
    return {"token": piece, "logprob": logprob, "bytes": list(piece.encode())}
