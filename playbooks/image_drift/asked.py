"""Asks an OpenAI-compatible server about pictures: opposite pairs, that a blind model answers alike, and tokens by size."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import httpx
from PIL import Image, ImageDraw

from playbooks.image_drift.probe import FOLDER
from probes.traffic.client import base_url
from runtime.images import ImageSettings
from runtime.pixels.geometry import final_size
from runtime.pixels.positions import placeholders
from traces.errors import Unreachable, UsageError
from traces.run import Run, whole_run

SIDE = 256  # pixels of the pictures of the pairs
SIZES = ((256, 256), (256, 512), (512, 384))  # (height, width) whose tokens are counted
TIMEOUT = 120.0  # seconds a question
NAME = "asked.json"
MOST_BYTES = 4 << 20  # of an answer
OPENAI = "give the address of an OpenAI-compatible server"


def _field(colour: str) -> Image.Image:
    return Image.new("RGB", (SIDE, SIDE), {"red": (220, 30, 30), "blue": (30, 60, 220)}[colour])


def _bar(where: str) -> Image.Image:
    image = Image.new("RGB", (SIDE, SIDE), "white")
    third = SIDE // 3
    box = {
        "left": (0, 0, third, SIDE),
        "right": (SIDE - third, 0, SIDE, SIDE),
        "top": (0, 0, SIDE, third),
        "bottom": (0, SIDE - third, SIDE, SIDE),
    }
    ImageDraw.Draw(image).rectangle(box[where], fill="black")
    return image


PAIRS = (
    ("red", "blue", _field, "Is this picture red or blue? Answer with one word."),
    ("left", "right", _bar, "Is the black bar at the left or at the right? Answer with one word."),
    ("top", "bottom", _bar, "Is the black bar at the top or at the bottom? Answer with one word."),
)


def run_of_endpoint(url: str, model: Path, root: Path | None = None) -> Run:
    """A closed run with the answers. Unreachable, UsageError for a server that refuses or answers otherwise, CheckpointError."""
    recipe = ImageSettings.read(model)
    with httpx.Client(base_url=base_url(url), timeout=TIMEOUT, trust_env=False) as client:
        name = _model(client)
        pairs = [
            {"want": want, "other": second if want == first else first, "answer": _ask(client, name, question, draw(want), 8)["text"]}
            for first, second, draw, question in PAIRS
            for want in (first, second)
        ]
        text = _ask(client, name, "Hello.", None, 1)["tokens"]
        counts = [
            {"height": h, "width": w, "expected": _expected(h, w, recipe),
             "tokens": _ask(client, name, "Hello.", Image.new("RGB", (w, h), (120, 130, 90)), 1)["tokens"]}
            for h, w in SIZES
        ]  # fmt: skip
    with whole_run(engine="endpoint", model=model.name, root=root) as run:
        (run.path / FOLDER).mkdir()
        (run.path / FOLDER / NAME).write_text(json.dumps({"pairs": pairs, "text": text, "counts": counts}))
    return run


def _expected(height: int, width: int, recipe: ImageSettings) -> int:
    """Tokens that a picture of this size takes in the prompt, with the separators at the ends of pixtral's rows."""
    rows, columns = final_size(height, width, recipe)
    ends = (1, 2) if recipe.family == "pixtral" else (None, None)
    return len(placeholders((1, rows // recipe.patch, columns // recipe.patch), recipe, 0, *ends))


def _model(client: httpx.Client) -> str:
    try:
        return str(_json(client, "GET", "/models", "a list of its models")["data"][0]["id"])
    except (LookupError, TypeError) as error:
        raise UsageError(f"{client.base_url} lists no model", OPENAI) from error


def _ask(client: httpx.Client, model: str, question: str, image: Image.Image | None, tokens: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": question}]
    if image is not None:
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
        content.insert(0, {"type": "image_url", "image_url": {"url": uri}})
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": tokens, "temperature": 0}
    answer = _json(client, "POST", "/chat/completions", "a question" if image is None else "a picture", body)
    try:
        return {"text": str(answer["choices"][0]["message"].get("content") or ""), "tokens": int(answer["usage"]["prompt_tokens"])}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{client.base_url} gives no choices with a message, or does not count tokens (usage)", OPENAI) from error


def _json(client: httpx.Client, method: str, path: str, asked: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """`asked`: what was asked for, in words, should the server refuse it."""
    data = bytearray()
    try:
        with client.stream(method, path, json=body) as response:
            for piece in response.iter_bytes():
                data += piece
                if len(data) > MOST_BYTES:
                    raise UsageError(f"{response.url} answers more than {MOST_BYTES >> 20} MiB", OPENAI)
    except httpx.HTTPError as error:
        raise Unreachable(f"{client.base_url} does not answer: {error}", "check the address of --endpoint") from error
    if response.status_code != 200:
        said = data[:300].decode("utf-8", "replace")
        hint = "does this model take pictures?" if asked == "a picture" else OPENAI
        raise UsageError(f"the server refused {asked} ({response.status_code}): {said}", hint)
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise UsageError(f"{response.url} does not answer in JSON", OPENAI) from error
    if not isinstance(answer, dict):
        raise UsageError(f"{response.url} answers with no object", OPENAI)
    return answer
