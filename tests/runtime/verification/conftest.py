"""A copy of the shipped checkpoint to damage, and ways to damage a header."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.shipped import shapes_moe

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The shipped model: nine shards and an index."""
    return Path(shutil.copytree(shapes_moe(), tmp_path / "model"))


@pytest.fixture
def shard(copy: Path) -> Path:
    return copy / "model-00003-of-00009.safetensors"


@pytest.fixture
def edit_header() -> Callable[[Path, Edit], None]:
    """edit_header(file, change): changes the JSON of a header in place; the data follows unchanged."""

    def edit(path: Path, change: Edit) -> None:
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        text = change(header)
        body = (text if isinstance(text, str) else json.dumps(header)).encode()
        path.write_bytes(len(body).to_bytes(8, "little") + body + raw[8 + length :])

    return edit
