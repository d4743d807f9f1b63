"""A server with redundant experts: the same answers, books that agree, and a placement from counts that makes the load more even."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openai
import pytest

from runtime.control_client import ControlClient, ControlRefused
from runtime.expert_balance import balanced
from runtime.launcher import ServerProcess, start_server
from traces.store import open_run

EXPERTS, SPARE, LAYERS, TOP_K = 16, 4, 4, 2
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory, requests_of: Any) -> Iterator[ServerProcess]:
    """Two ranks with ten slots each for sixteen experts."""
    with start_server(requests_of.config(tmp_path_factory.mktemp("spare"), 2, redundant_experts=SPARE, detail_every=4)) as server:
        yield server


def answers(client: openai.OpenAI, requests_of: Any) -> list[str | None]:
    asked = [requests_of.chat(f"What is {n} + {n + 1}?", max_tokens=12) for n in range(6)]
    asked.append(requests_of.about_picture("What is in the picture?"))
    return [client.chat.completions.create(**a).choices[0].message.content for a in asked]


def wait(server: ServerProcess, sql: str, enough: Callable[[Rows], bool]) -> Rows:
    import time

    deadline = time.monotonic() + 20
    with open_run(server.run) as store:
        while not enough(found := store.rows(sql)) and time.monotonic() < deadline:
            time.sleep(0.1)
    return found


def books(found: Rows, maps: list[list[int]], layer: int) -> tuple[Counter[int], Counter[int]]:
    """Rows asked for and rows computed, per expert."""
    size = len(maps[layer]) // 2
    logical: Counter[int] = Counter()
    physical: Counter[int] = Counter()
    for row in found:
        if row["layer"] == layer:
            logical.update(dict(enumerate(row["tokens"])))
            for slot, rows in enumerate(row["physical"]):
                physical[maps[layer][row["rank"] * size + slot]] += rows
    return logical, physical


def test_answers_books_hashes_and_balance(
    spare: ServerProcess, served: Callable[[int], ServerProcess], requests_of: Any
) -> None:
    client = requests_of.client_of(spare)
    plain = answers(requests_of.client_of(served(2)), requests_of)
    assert answers(client, requests_of) == plain
    with ControlClient.for_run(spare.run) as control:
        first = control.placement()
        assert {len(layer) for layer in first["layers"]} == {EXPERTS + SPARE} and (first["ranks"], first["hosts"]) == (2, 1)
        reversed_ = [list(reversed(layer)) for layer in first["layers"]]  # closes the windows of version 0, all at one step
        control.set_placement(reversed_, reason="test")
        done = wait(spare, "SELECT * FROM expert_load WHERE placement = 0", _complete)
        counts = np.zeros((LAYERS, EXPERTS))
        for layer in range(LAYERS):
            logical, physical = books(done, first["layers"], layer)
            assert sum(logical.values()) > 0 and +logical == +physical
            counts[layer] = [logical[expert] for expert in range(EXPERTS)]
        better = balanced(counts.tolist(), 2, EXPERTS + SPARE)
        switched = control.set_placement([list(layer) for layer in better.physical_to_logical], source="rebalance", reason="counts")
        assert switched["moved"] > 0 and switched["stall_ns"] > 0
        assert answers(client, requests_of) == plain
    placed = wait(spare, "SELECT * FROM placement", lambda rows: len(rows) == 3 * LAYERS)
    hashes = defaultdict(set)
    for row in placed:
        for expert, digest in zip(row["physical_to_logical"], row["slot_hashes"], strict=True):
            hashes[row["layer"], expert].add(digest)
    assert len(hashes) == LAYERS * EXPERTS and {len(found) for found in hashes.values()} == {1}
    for layer, loads in enumerate(counts):  # the policy is greedy: near even whatever the counts are, not the best there is
        assert _busiest(better.physical_to_logical[layer], loads) < 1.1


def _complete(rows: Rows) -> bool:
    """Both ranks have flushed their last window: as many rows were asked for as were computed."""
    return bool(rows) and sum(sum(r["tokens"]) for r in rows) == sum(sum(r["physical"]) for r in rows)


def _busiest(slots: tuple[int, ...], loads: np.ndarray) -> float:
    """Busiest of two ranks over the mean, an expert's rows split evenly over its slots."""
    share = loads / np.bincount(slots, minlength=len(loads))
    ranks = share[np.array(slots)].reshape(2, -1).sum(axis=1)
    return float(ranks.max() / ranks.mean())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda layer: list(range(EXPERTS)), "16 slots a layer, the server was started with 20"),
        (lambda layer: [1 if expert == 0 else expert for expert in layer], r"experts \[0\] without a slot"),
        (lambda layer: layer[:-1], "19 slots cannot be split evenly over 2 ranks"),
    ],
)
def test_placements_that_do_not_fit_are_refused(spare: ServerProcess, change: Any, word: str) -> None:
    with ControlClient.for_run(spare.run) as control:
        before = control.placement()
        with pytest.raises(ControlRefused, match=word):
            control.set_placement([change(layer) for layer in before["layers"]])
        assert control.placement() == before
