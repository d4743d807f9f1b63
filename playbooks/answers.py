"""Do the answers stay the same? Fixed greedy prompts, asked before and after a remedy through the server's own API."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from traces.errors import Unreachable

PROMPTS = (
    "What is 3 + 4?",
    "What colour is grass?",
    "Count from one to five.",
    "What is the opposite of hot?",
    "Repeat: a small red boat.",
    "Tell me a story about a cat.",
    "Which day comes after Monday?",
    "What is 9 - 2?",
)
MAX_TOKENS = 24
TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Answers:
    """Prompt -> text, of those prompts that gave the same text twice in a row: the others prove nothing about a change."""

    stable: dict[str, str]
    asked: int

    def differ(self, later: dict[str, str]) -> list[str]:
        """Prompts whose answer is another one now."""
        return [prompt for prompt, text in self.stable.items() if later.get(prompt) != text]


def before(url: str) -> Answers:
    """Asks twice: with other traffic in the batch, two equal logits may fall either way. Raises Unreachable."""
    first, second = ask(url), ask(url)
    return Answers({prompt: text for prompt, text in first.items() if second[prompt] == text}, len(first))


def ask(url: str) -> dict[str, str]:
    """One greedy answer per prompt. Raises Unreachable."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        with httpx.Client(base_url=base, timeout=TIMEOUT, trust_env=False) as client:
            model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
            return {prompt: _answer(client, model, prompt) for prompt in PROMPTS}
    except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
        raise Unreachable(
            f"the server at {url} does not answer the fixed prompts: {error}", "`workbench runs` tells whether it still runs"
        ) from error


def _answer(client: httpx.Client, model: str, prompt: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "seed": 0, "max_tokens": MAX_TOKENS}
    response = client.post("/v1/chat/completions", json=body).raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])
