"""Settings from flags and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.serve_config import ServeConfig, read_config
from traces.errors import UsageError


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"ep": 0}, "ep"),
        ({"ep": 4, "dp": 2}, "--dp"),
        ({"port": 70_000}, "port"),
        ({"max_sequences": 64, "max_tokens_per_step": 32}, "max_tokens_per_step"),
        ({"kv_blocks": 1}, "KV"),
        ({"device": "tpu"}, "tpu"),
        ({"dtype": "int3"}, "int3"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        ServeConfig(model="m", **settings).checked()


def test_flags_overrule_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('model = "m"\nep = 4\nmax_queue = 7\n')
    config = read_config(file, ep=2, port=None)
    assert (config.ep, config.max_queue, config.port) == (2, 7, 8000)


@pytest.mark.parametrize(("text", "word"), [("model = 3", "model"), ("modell = 'm'", "modell"), ("= 3", "TOML"), ("ep = 2", "model")])
def test_a_wrong_file_is_told(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=word):
        read_config(file)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing"):
        read_config(tmp_path / "nothing.toml")
