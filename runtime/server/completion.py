"""POST /v1/completions."""

from __future__ import annotations

from runtime.server import completion_request
from runtime.server.completion_request import CompletionRequest
from runtime.server.completion_response import CompletionResponse
from runtime.server.gateway import Gateway
from runtime.server.prompt import Prompt
from runtime.server.request_trace import RequestTrace


class Completion:
    """Prompts as they are, without a template."""

    operation = "text_completion"

    def parse(self, body: bytes) -> CompletionRequest:
        return completion_request.parse(body)

    async def prompts(self, gateway: Gateway, request: CompletionRequest, trace: RequestTrace) -> list[Prompt]:
        return await gateway.prompts.plain(request.prompts, bool(request.add_special_tokens), gateway.vocabulary, trace)

    def shape(self, gateway: Gateway, request: CompletionRequest, trace: RequestTrace) -> CompletionResponse:
        return CompletionResponse(f"cmpl-{trace.trace_id}", gateway.model, gateway.prompts.tokenizer)
