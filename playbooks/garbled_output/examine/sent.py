"""What a checkpoint folder makes of a conversation: template, token ids, stop set, sampling settings, vocabulary."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playbooks.garbled_output.facts import SAMPLING, STOPS, TEMPLATE, VOCABULARY
from runtime.server.chat_request import ChatMessage
from runtime.server.chat_template import ChatTemplate
from runtime.server.errors import ApiError
from runtime.server.tokenizer import Tokenizer
from traces.errors import WorkbenchError

Fact = tuple[str, dict[str, Any]]
USER, REPLY = "What is 3 + 4?", "Seven."
# Pieces that chat formats mark turns with. One that the tokenizer does not hold as one token was made for another model. [INST] and <<SYS>>
# are plain text to many, and tell nothing.
MARKER = re.compile(r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|<(?:start|end)_of_turn>")
SETTINGS = ("do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# Strings on which tokenizers part: contractions, digits, other scripts, control characters, white space (S2.3, tokenizer-ids).
PROBES = (
    "I'm sure you'll've", "12345678901234567890", "3.14e-10", "eBay mL iPhone", "\t\ttabs", "  two  spaces", "line\r\nline", "\x00\x1f\x7f",
    "中文字符", "日本語のテキスト", "한국어", "Ελληνικά", "עברית", "العربية", "😀👩‍👩‍👧", "é", "ﬁ", "a" * 40, "!!!???", "{\"k\": [1, 2]}",
)  # fmt: skip
MOST_SPECIAL = 64


def folder_facts(folder: Path) -> Iterator[Fact]:
    """UsageError and CheckpointError become facts: a template that cannot be read is an answer."""
    tokenizer: Tokenizer | None = None
    problem = ""
    try:
        tokenizer = Tokenizer.of(folder)
    except WorkbenchError as error:
        problem = error.message
    yield TEMPLATE, template_fact(folder, tokenizer)
    if tokenizer is not None:
        yield STOPS, stop_fact(folder, tokenizer)
    yield VOCABULARY, vocabulary_fact(folder, tokenizer, problem)
    found = read_json(folder / "generation_config.json")
    for name in SETTINGS:
        if found.get(name) is not None:
            yield SAMPLING, {"name": name, "value": str(found[name]), "sampling": bool(found.get("do_sample", True))}


def messages(reply: bool = False) -> list[ChatMessage]:
    asked = [ChatMessage(role="user", content=USER)]
    return [*asked, ChatMessage(role="assistant", content=REPLY), ChatMessage(role="user", content=USER)] if reply else asked


def rendered(folder: Path) -> str:
    """The prompt of one user message. CheckpointError without a template, ApiError where it refuses."""
    return ChatTemplate.of(folder).render(messages())


def template_fact(folder: Path, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """`unknown`: markers of the rendered text that are no token of the tokenizer; `header`: characters that the generation prompt
    adds; `headless`: none, though the template knows of a header."""
    try:
        template = ChatTemplate.of(folder)
        text = template.render(messages())
        plain = template.render(messages(), generate=False)
        talk = template.render(messages(reply=True))
    except WorkbenchError as error:
        return {"problem": error.message}
    except ApiError as error:
        return {"problem": str(error)}
    markers = sorted(set(MARKER.findall(talk)))
    known = [] if tokenizer is None else [m for m in markers if tokenizer.core.token_to_id(m) is not None]
    ids = tokenizer.encode(text) if tokenizer is not None else []
    bos = bos_id(folder, tokenizer)
    return {
        "hash": template.hash,
        "rendered": hashlib.sha256(text.encode()).hexdigest()[:16],
        "talk": hashlib.sha256(talk.encode()).hexdigest()[:16],
        "tail": text[-80:],
        "headless": not text[len(plain) :] and (template.knows_generation or before_reply(template, plain)),
        "header": len(text) - len(plain) if text.startswith(plain) else -1,
        "holds_message": USER in text,
        "holds_talk": REPLY in talk and talk.count(USER) == 2,
        "markers": markers,
        "unknown": [] if tokenizer is None else [m for m in markers if m not in known],
        "first": ids[:8],
        "last": ids[-8:],
        "count": len(ids),
        "bos": bos,
        "bos_count": ids[:4].count(bos) if bos is not None else 0,
        "repeated_first": bool(ids[1:]) and ids[0] == ids[1] and special(tokenizer, ids[0]),
    }


def before_reply(template: ChatTemplate, plain: str) -> bool:
    """Whether the template writes anything between a question, which it renders as `plain`, and an assistant's reply."""
    try:
        said = template.render(messages(reply=True)[:2], generate=False)
    except ApiError:
        return False
    header, found, _ = said.removeprefix(plain).partition(REPLY)
    return said.startswith(plain) and bool(found) and bool(header.strip())


def special(tokenizer: Tokenizer | None, token: int) -> bool:
    added = {} if tokenizer is None else tokenizer.core.get_added_tokens_decoder()
    return token in added and bool(added[token].special)


def bos_id(folder: Path, tokenizer: Tokenizer | None) -> int | None:
    token = read_json(folder / "tokenizer_config.json").get("bos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if tokenizer is None or not isinstance(text, str):
        return None
    number: int | None = tokenizer.core.token_to_id(text)
    return number


def stop_fact(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """`turn_end`: the special token that the template writes behind an assistant's message: the model was taught to end with it."""
    config, generation = read_json(folder / "config.json"), read_json(folder / "generation_config.json")
    declared = {
        "generation_config": id_list(generation.get("eos_token_id")),
        "config": id_list(config.get("eos_token_id", inner_config(config).get("eos_token_id"))),
        "tokenizer": id_list(_eos_of_tokenizer(folder, tokenizer)),
    }
    return {"in_force": tokenizer.stops, **declared, "turn_end": turn_end(folder, tokenizer)}


def turn_end(folder: Path, tokenizer: Tokenizer) -> int | None:
    """The first special token behind a reply that is the last message: history may be closed by another one.
    None where the template writes none there, or cannot be used."""
    try:
        text = ChatTemplate.of(folder).render(messages(reply=True)[:2], generate=False)
    except (WorkbenchError, ApiError):
        return None
    _, found, tail = text.partition(REPLY)
    if not found:
        return None
    return next((token for token in tokenizer.encode(tail)[:4] if special(tokenizer, token)), None)


def _eos_of_tokenizer(folder: Path, tokenizer: Tokenizer) -> Any:
    token = read_json(folder / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    return tokenizer.core.token_to_id(text) if isinstance(text, str) else None


def id_list(value: Any) -> list[int]:
    if isinstance(value, bool) or value is None:
        return []
    return [int(one) for one in value] if isinstance(value, list) else [int(value)]


def vocabulary_fact(folder: Path, tokenizer: Tokenizer | None, problem: str) -> dict[str, Any]:
    """`largest`: the largest id that the tokenizer can give; `rows` of the embedding according to the config. `probe`: hash of the ids of
    strings on which tokenizers part."""
    config = read_json(folder / "config.json")
    rows = config.get("vocab_size", inner_config(config).get("vocab_size"))
    if tokenizer is None:
        return {"problem": problem, "rows": rows}
    vocabulary = tokenizer.core.get_vocab(with_added_tokens=True)
    outside = sorted((number, text) for text, number in vocabulary.items() if isinstance(rows, int) and number >= rows)
    marks = sorted(one.content for one in tokenizer.core.get_added_tokens_decoder().values() if one.special)
    ids = {text: tokenizer.encode(text) for text in (*PROBES, *marks[:MOST_SPECIAL])}
    return {
        "rows": rows,
        "largest": max(vocabulary.values(), default=-1),
        "outside": [text for _, text in outside[:8]],
        "outside_count": len(outside),
        "probe": {text: hashlib.sha256(repr(found).encode()).hexdigest()[:12] for text, found in ids.items()},
    }


def inner_config(config: dict[str, Any]) -> dict[str, Any]:
    """`text_config`, or {} where there is none that can be used."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """An object, or {} where there is none: what is wrong with the file is another's to say."""
    try:
        document = json.loads(path.read_text()) if path.is_file() else {}
    except (ValueError, OSError):
        return {}
    return document if isinstance(document, dict) else {}
