"""Servers whose ranks form a mesh: same answers as one rank, every rank in its place, a clear word for what cannot be."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from probes.checkpoint import Checkpoint
from runtime.control_client import ControlClient
from runtime.launcher import ServerProcess, serve, start_server
from runtime.layout import BadLayout
from runtime.serve_config import ServeConfig
from runtime.shipped import shapes_moe
from runtime.verification.verify import Wanted, verify
from traces.store import open_run

GAP = 1e-3
QUESTIONS = ("What is 2 + 3?", "Count up from 4.", "What colour is grass?", "Repeat: red blue")


def config(root: Any, **settings: Any) -> ServeConfig:
    return ServeConfig(model=str(shapes_moe()), port=0, run_root=str(root), detail_every=1, **settings)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two stages of two lanes."""
    settings = {"tp": 2, "pp": 2, "stage_layers": [1, 3], "max_tokens_per_step": 40, "max_sequences": 8}
    with start_server(config(tmp_path_factory.mktemp("runs"), **settings)) as server:
        yield server


def answers(client: openai.OpenAI, requests_of: Any) -> list[list[tuple[str, float]]]:
    """Tokens and the gaps to the second likeliest, all requests at once."""
    asked = [*(requests_of.chat(text) for text in QUESTIONS), requests_of.about_picture("What is in the picture?")]

    def ask(request: dict[str, Any]) -> list[tuple[str, float]]:
        extra = {"ignore_eos": True}
        said = client.chat.completions.create(**{**request, "max_tokens": 10}, logprobs=True, top_logprobs=2, extra_body=extra)
        logprobs = said.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        return [(t.token, t.top_logprobs[0].logprob - t.top_logprobs[1].logprob) for t in logprobs.content]

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(ask, asked))


def test_a_mesh_answers_like_one_rank(mesh: ServerProcess, served: Callable[[int], ServerProcess], requests_of: Any) -> None:
    ours = answers(requests_of.client_of(mesh), requests_of)
    theirs = answers(requests_of.client_of(served(1)), requests_of)
    for first, second in zip(ours, theirs, strict=True):
        for (a, gap_a), (b, gap_b) in zip(first, second, strict=True):
            if min(gap_a, gap_b) < GAP:
                break
            assert a == b


def test_a_seeded_draw_is_the_same(mesh: ServerProcess, served: Callable[[int], ServerProcess], requests_of: Any) -> None:
    asked = {**requests_of.chat("Tell me something.", max_tokens=8), "temperature": 0.9, "seed": 5}
    said = [requests_of.client_of(s).chat.completions.create(**asked).choices[0].message.content for s in (mesh, served(1))]
    assert said[0] == said[1]


def rows(server: ServerProcess, sql: str, enough: Callable[[list[dict[str, Any]]], bool] = bool) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 20
    with open_run(server.run) as store:
        while not enough(found := store.rows(sql)) and time.monotonic() < deadline:
            time.sleep(0.1)
    return found


def test_every_rank_is_recorded_in_its_place(mesh: ServerProcess, requests_of: Any) -> None:
    answers(requests_of.client_of(mesh), requests_of)
    assert mesh.run.info.layout == {"tp": 2, "pp": 2, "dp": 1, "ep": 2} and mesh.run.info.world_size == 4
    places = rows(mesh, "SELECT rank, pp, dp, tp, ep FROM resource WHERE role = 'rank' ORDER BY rank", lambda r: len(r) == 4)
    assert [tuple(p.values()) for p in places] == [(0, 0, 0, 0, 0), (1, 0, 0, 1, 1), (2, 1, 0, 0, 0), (3, 1, 0, 1, 1)]
    stages = rows(mesh, "SELECT rank, any_value(stage) AS stage, max(micro_batch) AS most FROM step GROUP BY rank ORDER BY rank")
    assert [s["stage"] for s in stages] == [0, 0, 1, 1] and all(s["most"] >= 1 for s in stages)
    groups = {r["group"] for r in rows(mesh, 'SELECT DISTINCT "group" FROM collective', lambda r: len(r) >= 8)}
    assert groups == {"world", "ep0", "ep1", "tp0", "tp1", "pp0.0", "pp0.1", "results"}
    count = "SELECT stage, sum(prefill_tokens + decode_tokens) AS n FROM step GROUP BY stage ORDER BY stage"
    per_stage = rows(mesh, count, lambda r: len(r) == 2 and r[0]["n"] == r[1]["n"])
    assert per_stage[0]["n"] == per_stage[1]["n"] > 0


def test_what_every_rank_holds_is_proven(mesh: ServerProcess, tmp_path: Path) -> None:
    """Two stages of two lanes against the files, and against files in which two heads were exchanged."""
    rows(mesh, "SELECT rank FROM event WHERE kind = 'weights'", lambda r: len(r) == 4)
    found = verify(shapes_moe(), Wanted(run=mesh.run))
    assert found.status == "ok" and not found.unproven and sum(found.proven.values()) == found.tensors
    copy = Path(shutil.copytree(shapes_moe(), tmp_path / "copy"))
    name = "model.language_model.layers.1.self_attn.q_proj.weight"
    entry = Checkpoint.open(copy).tensors[name]
    data = bytearray((copy / entry.file).read_bytes())
    half, at = entry.nbytes // 2, entry.offset
    data[at : at + 2 * half] = data[at + half : at + 2 * half] + data[at : at + half]
    (copy / entry.file).write_bytes(data)
    wrong = verify(copy, Wanted(run=mesh.run))
    assert [problem.kind for problem in wrong.problems] == ["hash", "hash"] and wrong.status == "damaged"
    assert all(name in problem.tensor and "layers.1.qkv" in problem.detail for problem in wrong.problems)
    assert name.replace("layers.1", "layers.*") in wrong.unproven


def test_a_placement_is_switched_on_all_stages(mesh: ServerProcess, requests_of: Any) -> None:
    before = answers(requests_of.client_of(mesh), requests_of)
    with ControlClient.for_run(mesh.run) as control:
        now = control.placement()
        done = control.set_placement([list(reversed(layer)) for layer in now["layers"]])
        assert done["moved"] == 4 * 16
    after = answers(requests_of.client_of(mesh), requests_of)
    assert [[t for t, _ in one] for one in after] == [[t for t, _ in one] for one in before]
    found = rows(
        mesh, f"SELECT DISTINCT layer FROM placement WHERE placement = {done['version']} ORDER BY layer", lambda r: len(r) == 4
    )
    assert [r["layer"] for r in found] == [0, 1, 2, 3]


def test_metrics_are_those_of_replicas(mesh: ServerProcess) -> None:
    text = httpx.get(f"{mesh.url}/metrics").text
    engines = {line.partition('engine="')[2].partition('"')[0] for line in text.splitlines() if 'engine="' in line}
    assert engines == {"0"}


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"tp": 3}, "4 attention heads cannot be split over 3 ranks"),
        ({"pp": 5}, "5 stages are more than the 4 layers"),
        ({"pp": 2, "stage_layers": [1, 1]}, "does not cover the 4 layers"),
        ({"pp": 2, "stage_layers": [4]}, "names 1 stages"),
        ({"tp": 2, "ep": 3}, "no multiple of --tp 2"),
        ({"tp": 2, "dp": 2, "ep": 2}, "differs from --dp 2 times --tp 2"),
        ({"tp": 4, "dp": 8}, "16 experts cannot be split over 32 ranks"),
        ({"tp": 2, "nodes": 4, "head": "127.0.0.1"}, "cannot be spread evenly over 4 nodes"),
        ({"tp": 2, "nodes": 2}, "--head"),
        ({"tp": 2, "nodes": 2, "node_rank": 2, "head": "h"}, "no node 2"),
    ],
)
def test_impossible_layouts_are_refused_before_anything_starts(tmp_path: Any, settings: dict[str, Any], word: str) -> None:
    from traces.errors import UsageError

    with pytest.raises(UsageError, match=word) as caught:
        serve(config(tmp_path / "runs", **settings))
    assert caught.value.exit_code == 2 and caught.value.hint
    assert not (tmp_path / "runs").exists()
    assert not settings.get("pp") or isinstance(caught.value, BadLayout)


def test_a_dead_follower_ends_everything_and_is_named(tmp_path: Any, requests_of: Any) -> None:
    with start_server(config(tmp_path, tp=2, pp=2)) as server:
        family = psutil.Process(server.process.pid).children(recursive=True)
        body = {**requests_of.chat("Count up from 1.", max_tokens=900), "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
            requests_of.wait_for_text(response)
            began = time.monotonic()
            os.kill(next(p.pid for p in family if p.name() == "wb-rank3"), signal.SIGKILL)
            assert server.process.wait(30) == 1
        assert time.monotonic() - began < 15
        assert any("rank 3 died first" in line for line in server.said)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive
