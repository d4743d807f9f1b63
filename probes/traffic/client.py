"""One request to an OpenAI-compatible server, streamed and measured."""

from __future__ import annotations

import asyncio
import email.utils
import ipaddress
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from probes.traffic.prompts import Prompt
from probes.traffic.stream import Answer, BadStream, read_answer
from traces.errors import Unreachable, UsageError

BUSY = (429, 503)  # too many requests; no capacity now
FIRST_WAIT = 0.25  # seconds before trying again where the server does not say how long
LONGEST_WAIT = 10.0
CONNECT = 10.0  # seconds to connect, or to list the models
KEEP_IDLE = 4.0  # seconds: below uvicorn's keep-alive of 5, so that no request meets a connection the server is closing


@dataclass(slots=True)
class Outcome:
    """How a request ended; the answer may be partial."""

    answer: Answer = field(default_factory=Answer)
    status: str = "ok"
    reason: str = ""
    busy: int = 0
    refused: bool = False  # no connection could be made


class ChatClient:
    """A pool of connections to one server. Use as an async context manager."""

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 60.0) -> None:
        self.base = base_url(url)
        self._timeout = timeout
        headers = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=min(timeout, CONNECT)),  # the whole request has its own limit
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=KEEP_IDLE),
            trust_env=not is_loopback(self.base),  # a proxy from the environment would take even 127.0.0.1
            verify=self.base.startswith("https"),  # loading the certificates takes 0.1 s
        )

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def model(self) -> str:
        """Name of the first model the server lists. Raises Unreachable, UsageError."""
        url = f"{self.base}/models"
        try:
            response = await self._http.get(url, headers={"accept": "application/json"}, timeout=CONNECT)
        except httpx.HTTPError as error:
            hint = "start it with `workbench serve`, or check host and port; `curl URL/v1/models` must answer"
            raise Unreachable(f"no server answers at {url}: {_why(error)}", hint) from error
        if response.status_code in (401, 403):
            raise UsageError(f"{url} wants a key (HTTP {response.status_code})", "give one with --api-key")
        try:
            return str(response.raise_for_status().json()["data"][0]["id"])
        except (httpx.HTTPStatusError, ValueError, KeyError, IndexError, TypeError) as error:
            raise UsageError(f"{url} does not list a model: {_why(error)}", "name one with --model, or check the URL") from error

    async def ask(self, prompt: Prompt, headers: Mapping[str, str], outcome: Outcome) -> None:
        """Send one prompt and read its answer into `outcome`, also what went wrong: nothing is raised but cancellation."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._exchange(prompt, headers, outcome)
        except (TimeoutError, httpx.HTTPError, BadStream) as error:
            if outcome.answer.done and outcome.answer.complete:  # the answer was there; how the connection ends after it does not matter
                return
            outcome.refused = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            _failed(outcome, _reason(error, len(outcome.answer.times), self._timeout))

    async def _exchange(self, prompt: Prompt, headers: Mapping[str, str], outcome: Outcome) -> None:
        url, wait = f"{self.base}/chat/completions", FIRST_WAIT
        while True:
            async with self._http.stream("POST", url, content=prompt.body, headers=dict(headers)) as response:
                if response.status_code == 200:
                    await read_answer(response.aiter_bytes(), outcome.answer)
                    return
                if response.status_code not in BUSY:
                    body = (await response.aread())[:300].decode("utf-8", "replace")
                    _failed(outcome, f"HTTP {response.status_code}: {' '.join(body.split())}")
                    return
                told = retry_after(response.headers.get("retry-after"))
            outcome.busy += 1
            await asyncio.sleep(wait if told is None else told)
            wait = min(2 * wait, LONGEST_WAIT)


def _reason(error: Exception, pieces: int, timeout: float) -> str:
    if isinstance(error, BadStream):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"timeout after {timeout:g} s, {pieces} pieces of text received"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"cannot connect: {_why(error)}"
    return f"connection lost after {pieces} pieces of text: {_why(error)}"


def _failed(outcome: Outcome, reason: str) -> None:
    outcome.status, outcome.reason = "error", reason


def base_url(url: str) -> str:
    """`http://host:port/v1` from a URL with or without /v1 or the full path of the endpoint. Raises UsageError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not the URL of a server", "for example http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/models")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else f'{path}/v1'}"


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which holds seconds or a date (RFC 9110, 10.2.3); None where it says nothing."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _why(error: Any) -> str:
    return str(error) or type(error).__name__
