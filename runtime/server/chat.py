"""POST /v1/chat/completions."""

from __future__ import annotations

from runtime.server import chat_request
from runtime.server.chat_request import ChatRequest
from runtime.server.chat_response import ChatResponse
from runtime.server.gateway import Gateway
from runtime.server.prompt import Prompt
from runtime.server.request_trace import RequestTrace


class Chat:
    """Messages through the checkpoint's own template, images beside them."""

    operation = "chat"

    def parse(self, body: bytes) -> ChatRequest:
        return chat_request.parse(body)

    async def prompts(self, gateway: Gateway, request: ChatRequest, trace: RequestTrace) -> list[Prompt]:
        return [await gateway.prompts.build(request, trace)]

    def shape(self, gateway: Gateway, request: ChatRequest, trace: RequestTrace) -> ChatResponse:
        name = f"chatcmpl-{trace.trace_id}"
        return ChatResponse(name, gateway.model, gateway.prompts.tokenizer, bool(request.offered_tools))
