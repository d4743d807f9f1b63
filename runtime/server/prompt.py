"""From a chat request to what a rank computes: token ids, positions, image patches."""

from __future__ import annotations

import asyncio
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from runtime.messages import ImagePatches
from runtime.prefix_digest import ImageMark, block_digests
from runtime.server.chat_request import ChatRequest, ImageUrl, Part
from runtime.server.chat_template import ChatTemplate
from runtime.server.errors import ApiError, invalid
from runtime.server.generation_request import check_tokens
from runtime.server.image_reader import ImageReader, Patches
from runtime.server.request_trace import RequestTrace
from runtime.server.tokenizer import Tokenizer

MOST_TOKENS = 1 << 22  # of one prompt, before the model's own limit is looked at
LONG_TEXT = 20_000  # characters; above, templates and tokenizer leave the event loop (about 5 ms of work)


@dataclass(frozen=True, slots=True)
class Prompt:
    """`images` stand at their places in `tokens`; `positions` is int64 [3, T], empty where all tokens count on."""

    tokens: list[int]
    positions: bytes
    images: list[ImagePatches]
    image_tokens: int

    @property
    def hash(self) -> str:
        """Of the token ids; tells equal prompts without showing them."""
        return hashlib.sha256(np.asarray(self.tokens, dtype=np.int64).tobytes()).hexdigest()[:16]

    def prefix(self, block_size: int, salt: str) -> list[bytes]:
        """Digests of its full KV blocks."""
        marks = [ImageMark(image.start, image.count, image.digest) for image in self.images]
        return block_digests(self.tokens, block_size, marks, salt=salt)


class PromptBuilder:
    """Template and tokenizer, and the image reader of a model that sees (else None)."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, images: ImageReader | None, max_images: int) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self._images = images
        self._max_images = max_images
        self._pool = ThreadPoolExecutor(1, "tokenize")

    async def build(self, request: ChatRequest, trace: RequestTrace) -> Prompt:
        """Reports the stages image.preprocess and tokenize. ApiError 400 or 413."""
        uris, patches = self._image_uris(request), []
        if uris:
            assert self._images is not None
            patches = await self._images.read(uris)
            trace.stage("image.preprocess", time.time_ns(), {
                "moe.images": len(patches), "moe.image_tokens": sum(image.tokens for image in patches),
                "moe.image_sizes": [side for one in patches for side in reversed(one.size)],  # height, width of each
                "moe.image_grids": [side for one in patches for side in one.grid],  # t, h, w of each
            })  # fmt: skip
        sizes = [image.size for image in patches]
        size = sum(len(p.text or "") for m in request.messages for p in (m.content if isinstance(m.content, list) else []))
        size += sum(len(m.content) for m in request.messages if isinstance(m.content, str))
        if size > LONG_TEXT:
            tokens = await asyncio.get_running_loop().run_in_executor(self._pool, self._tokens, request, sizes)
        else:
            tokens = self._tokens(request, sizes)
        trace.stage("tokenize", time.time_ns(), {"moe.tokens": len(tokens)})
        return self._with_images(tokens, patches) if patches else Prompt(tokens, b"", [], 0)

    async def plain(self, prompts: list[str | list[int]], special: bool, vocabulary: int, trace: RequestTrace) -> list[Prompt]:
        """Prompts without a template; reports the stage tokenize. ApiError 400 for an empty prompt or an unknown token id."""
        size = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
        made = []
        for prompt in prompts:
            if not isinstance(prompt, str):
                check_tokens(prompt, vocabulary, "prompt", MOST_TOKENS)
                tokens = prompt
            elif size > LONG_TEXT:
                tokens = await asyncio.get_running_loop().run_in_executor(self._pool, self.tokenizer.encode, prompt, special)
            else:
                tokens = self.tokenizer.encode(prompt, special)
            if not tokens:
                raise invalid("the prompt is empty", "prompt")
            made.append(Prompt(tokens, b"", [], 0))
        trace.stage("tokenize", time.time_ns(), {"moe.tokens": sum(len(prompt.tokens) for prompt in made)})
        return made

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._images is not None:
            self._images.close()

    def _tokens(self, request: ChatRequest, sizes: list[tuple[int, int]]) -> list[int]:
        return self.tokenizer.encode(self.template.render(request.messages, request.offered_tools, sizes=sizes))

    def _image_uris(self, request: ChatRequest) -> list[tuple[str, str]]:
        """(place, URI) of every image, in order."""
        found = []
        for index, message in enumerate(request.messages):
            parts: list[Part] = message.content if isinstance(message.content, list) else []
            for place, part in enumerate(parts):
                if part.type == "image_url" and part.image_url is not None:
                    url = part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url
                    found.append((f"messages[{index}].content[{place}].image_url", url))
        if found and self._images is None:
            raise invalid("this model takes text only", found[0][0])
        if len(found) > self._max_images:
            raise ApiError(413, f"{len(found)} images in one request; the limit is {self._max_images} (max_images)", code="too_many_images")
        return found

    def _with_images(self, tokens: list[int], patches: list[Patches]) -> Prompt:
        """Every image token of the template becomes as many as its image has."""
        assert self._images is not None
        if tokens.count(self._images.token) != len(patches):
            raise invalid("the text of a message contains the model's image token", "messages")
        expanded: list[int] = []
        placed: list[ImagePatches] = []
        images = iter(patches)
        for token in tokens:
            if token == self._images.token:
                image = next(images)
                placed.append(ImagePatches(image.data, image.width, image.grid, len(expanded), image.tokens, image.digest))
                expanded += [token] * image.tokens
            else:
                expanded.append(token)
        try:
            positions = self._images.positions(expanded, [image.grid for image in patches])
        except ValueError as error:
            raise invalid(f"the chat template puts images where the model cannot tell them apart: {error}", "messages") from error
        return Prompt(expanded, positions, placed, sum(image.tokens for image in patches))
