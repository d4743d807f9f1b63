"""Real servers of the shipped model, one per number of ranks, kept for the whole session."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from PIL import Image, ImageDraw

from runtime.control_client import ControlClient
from runtime.launcher import ServerProcess, start_server
from runtime.serve_config import ServeConfig
from runtime.shipped import shapes_moe
from traces.store import open_run

MODEL = "shapes-moe"


def serve_config(root: Any, ep: int, **settings: Any) -> ServeConfig:
    return ServeConfig(model=str(shapes_moe()), ep=ep, port=0, run_root=str(root), **settings)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], ServerProcess]]:
    """served(ranks): a running server, started when first asked for."""
    servers: dict[int, ServerProcess] = {}

    def get(ranks: int) -> ServerProcess:
        if ranks not in servers:
            servers[ranks] = start_server(serve_config(tmp_path_factory.mktemp("runs"), ranks, detail_every=8))
        return servers[ranks]

    yield get
    for server in servers.values():
        server.stop()


@pytest.fixture(scope="session")
def server(served: Callable[[int], ServerProcess]) -> ServerProcess:
    """Two ranks."""
    return served(2)


@pytest.fixture
def client(server: ServerProcess) -> openai.OpenAI:
    return client_of(server)


@pytest.fixture
def control(server: ServerProcess) -> Iterator[ControlClient]:
    with ControlClient.for_run(server.run) as control:
        yield control


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def post(server: ServerProcess) -> Callable[..., httpx.Response]:
    """post(body): what the chat endpoint says to a body of any kind."""

    def send(body: Any) -> httpx.Response:
        url = f"{server.url}/v1/chat/completions"
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        return httpx.post(url, timeout=60, **content)

    return send


@pytest.fixture
def rows(server: ServerProcess) -> Callable[..., list[dict[str, Any]]]:
    """rows(sql, enough): asks the live store until `enough(rows)`; what a rank records arrives a moment later."""

    def ask(sql: str, enough: Callable[[list[dict[str, Any]]], bool] = bool) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 20
        with open_run(server.run) as store:
            while True:
                found = store.rows(sql)
                if enough(found) or time.monotonic() > deadline:
                    return found
                time.sleep(0.1)

    return ask


def chat(text: str, **settings: Any) -> dict[str, Any]:
    """Arguments of a greedy request with one text message."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 40, **settings}


def picture(side: int = 128) -> bytes:
    """A red circle on white, PNG."""
    image = Image.new("RGB", (side, side), "white")
    ImageDraw.Draw(image).ellipse([side // 3, side // 3, 2 * side // 3, 2 * side // 3], fill=(220, 40, 40))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def about_picture(text: str, data: bytes | None = None, url: str | None = None, **settings: Any) -> dict[str, Any]:
    """Arguments of a greedy request about a picture (its file's bytes, or any URL)."""
    uri = url or "data:image/png;base64," + base64.b64encode(picture() if data is None else data).decode()
    content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": text}]
    return {**chat(text, **settings), "messages": [{"role": "user", "content": content}]}


def wait_for_text(response: httpx.Response) -> None:
    """Reads a stream up to its first piece of text."""
    for line in response.iter_lines():
        if '"content":"' in line and '"content":""' not in line:
            return
    raise AssertionError("the stream ended without text")


@pytest.fixture(scope="session")
def requests_of() -> Any:
    """The builders of requests, for test modules (which cannot import this file)."""

    class Builders:
        chat = staticmethod(chat)
        about_picture = staticmethod(about_picture)
        picture = staticmethod(picture)
        wait_for_text = staticmethod(wait_for_text)
        config = staticmethod(serve_config)
        client_of = staticmethod(client_of)

    return Builders
