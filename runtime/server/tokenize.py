"""POST /tokenize and /detokenize, with vLLM's fields."""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.server.chat_request import ChatMessage
from runtime.server.errors import invalid
from runtime.server.gateway import Gateway
from runtime.server.generation_request import check_tokens, decode

MOST_TOKENS = 1 << 22


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Either a prompt as it is, or messages that go through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = True
    return_token_strs: bool | None = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None


_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)


def tokenize(gateway: Gateway, body: bytes) -> dict[str, Any]:
    """{count, max_model_len, tokens}. ApiError 400."""
    request: TokenizeRequest = decode(_tokenize, body)
    if (request.prompt is None) == (request.messages is None):
        raise invalid("give either prompt or messages", "prompt")
    tokenizer = gateway.prompts.tokenizer
    if request.messages is not None:
        text = gateway.prompts.template.render(request.messages, generate=request.add_generation_prompt is not False)
        tokens = tokenizer.encode(text, special=bool(request.add_special_tokens))
    else:
        tokens = tokenizer.encode(request.prompt or "", special=request.add_special_tokens is not False)
    strings = [tokenizer.piece(token) for token in tokens] if request.return_token_strs else None
    return {"count": len(tokens), "max_model_len": gateway.longest, "tokens": tokens, "token_strs": strings}


def detokenize(gateway: Gateway, body: bytes) -> dict[str, Any]:
    """{prompt}: the text, special tokens too. ApiError 400."""
    request: DetokenizeRequest = decode(_detokenize, body)
    check_tokens(request.tokens, gateway.vocabulary, "tokens", MOST_TOKENS)
    return {"prompt": gateway.prompts.tokenizer.decode(request.tokens)}
