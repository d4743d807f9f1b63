"""Text in and out of the API process: stop strings, chat template, detokenizer, data URIs."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.server.chat_request import ChatMessage, ImageUrl, Part
from runtime.server.chat_template import ChatTemplate
from runtime.server.data_uri import decode_image
from runtime.server.errors import ApiError
from runtime.server.stop_strings import StopCutter
from runtime.server.tokenizer import Tokenizer
from runtime.shipped import shapes_moe
from traces.errors import CheckpointError

LETTERS = st.text("ab", max_size=30)


@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.integers(1, 5), max_size=30))
def test_the_cut_does_not_depend_on_how_the_text_arrives(text: str, stops: list[str], sizes: list[int]) -> None:
    cutter, out, rest = StopCutter(stops), "", text
    for size in [*sizes, 1_000]:
        piece, rest = rest[:size], rest[size:]
        out += cutter.push(piece)
        assert not any(stop in out for stop in stops)
    out += cutter.flush()
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    assert cutter.stopped == bool(found)
    # Piecewise the stop string that is complete first wins; it may begin later than a longer one that is not complete yet.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert text.startswith(out) and len(out) <= (min(ends) if ends else len(text))
    if not found:
        assert out == text


def test_one_stop_string_cuts_exactly() -> None:
    cutter = StopCutter(["END"])
    assert [cutter.push(piece) for piece in ("one E", "N two EN", "D three")] == ["one ", "EN two ", ""]
    assert cutter.stopped


def test_template_renders_as_transformers_does() -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(shapes_moe())
    conversation = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]},
        {"role": "assistant", "content": "A star."},
        {"role": "user", "content": "And its colour?"},
    ]
    image = Part("image_url", image_url=ImageUrl("data:image/png;base64,AAAA"))
    messages = [
        ChatMessage("system", "Be short."),
        ChatMessage("user", [image, Part("text", text="What is this?")]),
        ChatMessage("assistant", "A star."),
        ChatMessage("user", [Part("text", text="And its "), Part("text", text="colour?")]),
    ]
    rendered = ChatTemplate.of(shapes_moe()).render(messages)
    assert rendered == reference.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    ids = reference.apply_chat_template(conversation, add_generation_prompt=True)["input_ids"]
    assert Tokenizer.of(shapes_moe()).encode(rendered) == ids


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ raise_exception('roles') }}"])
def test_what_a_template_may_not_do_is_a_refusal(source: str) -> None:
    with pytest.raises(ApiError, match="chat template refuses"):
        ChatTemplate(source, {}).render([ChatMessage("user", "hi")])


def test_a_checkpoint_without_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no chat template"):
        ChatTemplate.of(tmp_path)


@given(st.text(max_size=40))
def test_streamed_tokens_give_back_the_text(text: str) -> None:
    """Characters of several tokens (the vocabulary is bytes and words) must come out whole."""
    tokenizer = Tokenizer.of(shapes_moe())
    stream = tokenizer.stream()
    out = "".join(stream.push(token) for token in tokenizer.encode(text)) + stream.flush()
    assert out == text


def test_data_uri_limits() -> None:
    uri = "data:image/png;base64," + base64.b64encode(b"x" * 100).decode()
    assert decode_image(uri, 100, "here") == b"x" * 100
    with pytest.raises(ApiError) as caught:
        decode_image(uri, 90, "here")
    assert (caught.value.status, caught.value.param) == (413, "here")
