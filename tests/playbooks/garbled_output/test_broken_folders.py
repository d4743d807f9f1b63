"""Folders, references and options that are wrong in themselves: an answer or a usage error, never a traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from playbooks.garbled_output.bases import edit_config, qwen
from playbooks.garbled_output.examine.files import file_facts
from playbooks.garbled_output.examine.forward import Asked, forward_facts
from playbooks.garbled_output.examine.sent import folder_facts, stop_fact, template_fact
from playbooks.garbled_output.facts import FILES, LOAD, TRIAL, VOCABULARY
from runtime.local import load_local
from runtime.server.tokenizer import Tokenizer
from runtime.shipped import shapes_moe
from runtime.taps.capture import Capture
from runtime.taps.tapped_model import TappedModel, record
from runtime.validation.subject import probe_ids
from traces.errors import UsageError
from workbench.cli.judged import Asked as Options
from workbench.cli.judged import check, grid_of

MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
LAST = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{{ '<|endoftext|>' if loop.last and m.role == 'assistant' else '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shapes_moe(), tmp_path / "model"))


@pytest.mark.parametrize("changes", [{"eos_token_id": "foo"}, {"text_config": [1]}, {"eos_token_id": [None]}, {"vocab_size": "many"}])
def test_a_config_of_wrong_types_is_an_answer(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert VOCABULARY in dict(folder_facts(folder))
    assert FILES in dict(file_facts(folder, False))
    dict(forward_facts(Asked(folder)))


def test_no_heads_are_refused(tmp_path: Path) -> None:
    qwen(tmp_path / "model", 0)
    edit_config(tmp_path / "model", num_attention_heads=0, head_dim=None)
    assert "num_attention_heads" in dict(file_facts(tmp_path / "model"))[FILES]["problem"]
    assert "problem" in dict(forward_facts(Asked(tmp_path / "model")))[LOAD]


def test_a_template_of_other_bytes_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe{{ messages }}")
    assert "not UTF-8" in template_fact(folder, Tokenizer.of(folder))["problem"]


def test_a_template_without_headers_is_as_it_should_be(folder: Path) -> None:
    """As Mistral's: the reply follows the question, and [INST] is text."""
    (folder / "chat_template.jinja").write_text(MISTRAL)
    own = template_fact(folder, Tokenizer.of(folder))
    assert (own["unknown"], own["header"], bool(own["headless"])) == ([], 0, False)


def test_a_template_that_forgets_the_header_it_knows_is_none(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(LAST.partition("{% if add")[0])
    assert template_fact(folder, Tokenizer.of(folder))["headless"]


def test_the_last_reply_is_what_ends_a_turn(folder: Path) -> None:
    """As gpt-oss has it: history is closed by another token."""
    (folder / "chat_template.jinja").write_text(LAST)
    tokenizer = Tokenizer.of(folder)
    assert stop_fact(folder, tokenizer)["turn_end"] == tokenizer.core.token_to_id("<|endoftext|>")


def test_a_reference_without_weights_of_the_router_is_compared_all_the_same(folder: Path, tmp_path: Path) -> None:
    own = record(TappedModel.over(load_local(folder)), probe_ids(998, 0))
    own.taps["layers.0.router.logits"] *= 2
    path = tmp_path / "taps.safetensors"
    Capture(own.ids, {name: tap for name, tap in own.taps.items() if not name.endswith("router.weights")}, own.facts).save(path)
    assert TRIAL not in dict(forward_facts(Asked(folder, str(path))))


@pytest.mark.parametrize("endpoint", ["http://localhost:notaport", "http://[::1"])
def test_an_address_that_is_none_is_a_usage_error(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        check("garbled-output", Options(run="latest", endpoint=endpoint))


def test_a_grid_of_many_digits_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="is no grid"):
        grid_of("1" * 5000 + ",1,1")
