"""The plan against what two served ranks really used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai

from runtime.budget.comparison import compare
from runtime.launcher import ServerProcess

Rows = Callable[..., list[dict[str, Any]]]


def test_the_plan_agrees_with_what_was_used(server: ServerProcess, client: openai.OpenAI, rows: Rows, requests_of: Any) -> None:
    """Weights to the byte; the rise of resident memory by the KV cache within 5 %."""
    client.chat.completions.create(**requests_of.chat("What is 2 + 3?"))
    rows("SELECT 1 FROM step")
    rows("SELECT rank FROM memory WHERE phase = 'serve' AND rank IS NOT NULL GROUP BY rank", lambda found: len(found) == 2)
    inventory, served, found = compare(server.run)
    assert served.layout.world == 2 and served.item == 4 and inventory.tensors == 104
    weights = [line for line in found.lines if line.measure == "bytes the loader kept"]
    assert [line.rank for line in weights] == [0, 1] and all(line.planned == line.used for line in weights)
    cache = [line for line in found.lines if line.line == "kv"]
    assert len(cache) == 2 and all(line.difference is not None and abs(line.difference) < 0.05 for line in cache)
    assert found.agrees is True
