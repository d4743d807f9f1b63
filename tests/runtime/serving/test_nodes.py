"""Several hosts, played by several launchers on this one: they find each other, serve together, and end together."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from runtime.layout import Layout
from runtime.nodes.frames import TOKEN, Challenge, Join, Refused, Wire, proof
from runtime.nodes.head import HeadNode
from runtime.peer_check import Facts, OtherLibrary, refuse_strangers
from runtime.shipped import shapes_moe
from traces.errors import CheckpointError
from traces.run import Run, create_run
from traces.store import open_run

ROOT = Path(__file__).parents[3]
SECRET = "a token for a test of two nodes"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@dataclass
class Node:
    process: subprocess.Popen[str]
    errors: Path

    @property
    def words(self) -> str:
        return self.errors.read_text()

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


class Pair:
    """Node 0 and node 1 of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.nodes: list[Node] = []

    def start(self, rank: int, model: str, *flags: str) -> Node:
        errors = self.folder / f"stderr{rank}"
        command = [
            sys.executable, "-m", "workbench", "serve", model, "--nodes", "2", "--node-rank", str(rank), "--head", f"127.0.0.1:{self.port}",
            "--run-root", str(self.folder / f"runs{rank}"), "--port", "0", "--json", *flags,
        ]  # fmt: skip
        environment = {**os.environ, TOKEN: SECRET, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=errors.open("w"), start_new_session=True
        )
        self.nodes.append(Node(process, errors))
        return self.nodes[-1]

    def ready(self) -> dict[str, Any]:
        """What node 0 says when all four ranks serve."""
        lines: list[str] = []
        assert self.nodes[0].process.stdout is not None
        for line in self.nodes[0].process.stdout:
            lines.append(line)
            if line.rstrip("\n") == "}":
                return dict(json.loads("".join(lines)))
        raise AssertionError(self.nodes[0].words + self.nodes[1].words)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    for node in made.nodes:
        if node.process.poll() is None:
            node.process.kill()
            node.process.wait()


def test_two_nodes_serve_together_and_a_dead_rank_ends_both(pair: Pair) -> None:
    flags = ("--tp", "2", "--pp", "2")
    head = pair.start(0, "shapes", *flags)
    member = pair.start(1, "shapes", *flags)
    ready = pair.ready()
    question = {"model": ready["model"], "messages": [{"role": "user", "content": "What is 3 + 4?"}], "temperature": 0}
    answer = httpx.post(f"{ready['url']}/v1/chat/completions", json=question, timeout=60).json()
    assert answer["choices"][0]["message"]["content"] == "3 + 4 = 7."
    run = Run(Path(ready["path"]))
    deadline = time.monotonic() + 20
    with open_run(run) as store:
        while len(found := store.rows("SELECT DISTINCT rank FROM step ORDER BY rank")) < 4 and time.monotonic() < deadline:
            time.sleep(0.2)
    assert [row["rank"] for row in found] == [0, 1, 2, 3]
    assert {"rank0", "rank3"} <= set(run.info.fingerprints)
    members = member.children()
    assert {p.name() for p in members} == {"wb-agent", "wb-rank2", "wb-rank3"}
    everyone = [*members, *head.children()]
    began = time.monotonic()
    os.kill(next(p.pid for p in members if p.name() == "wb-rank3"), signal.SIGKILL)
    assert (head.process.wait(30), member.process.wait(30)) == (1, 1)
    assert time.monotonic() - began < 20
    for node in (head, member):
        assert "rank 3 died first" in node.words and "Traceback" not in node.words, node.words
    _, alive = psutil.wait_procs(everyone, timeout=20)
    assert not alive


def test_a_stopped_head_ends_the_other_node_in_order(pair: Pair) -> None:
    head = pair.start(0, "shapes", "--ep", "2")
    member = pair.start(1, "shapes", "--ep", "2")
    ready = pair.ready()
    head.process.send_signal(signal.SIGTERM)
    assert (head.process.wait(30), member.process.wait(30)) == (0, 0), head.words + member.words
    with open_run(Run(Path(ready["path"]))) as store:
        assert len(store.rows("SELECT DISTINCT rank FROM memory WHERE rank IS NOT NULL")) == 2


def test_a_node_that_looks_for_its_head_can_be_stopped(pair: Pair) -> None:
    member = pair.start(1, "shapes", "--ep", "2")
    until = time.monotonic() + 60
    while "looking for the head" not in member.words and member.process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    member.process.send_signal(signal.SIGINT)
    assert member.process.wait(20) == 0 and "Traceback" not in member.words, member.words


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["head", "member"])
def test_a_node_that_vanishes_ends_the_other_with_words(pair: Pair, victim: str) -> None:
    """Killed without a chance to say anything, as when a host loses its power."""
    head = pair.start(0, "shapes", "--ep", "2")
    member = pair.start(1, "shapes", "--ep", "2")
    pair.ready()
    everyone = [*member.children(), *head.children()]
    killed, left, words = (head, member, "the head node is gone") if victim == "head" else (member, head, "node 1")
    os.kill(killed.process.pid, signal.SIGKILL)
    began = time.monotonic()
    assert left.process.wait(30) == 1, left.words
    assert time.monotonic() - began < 20 and words in left.words and "Traceback" not in left.words, left.words
    _, alive = psutil.wait_procs(everyone, timeout=20)
    assert not alive


@pytest.mark.slow
def test_torchrun_starts_the_ranks_of_both_nodes(pair: Pair) -> None:
    flags = ("--tp", "2", "--pp", "2", "--agent", "torchrun")
    head, member = pair.start(0, "shapes", *flags), pair.start(1, "shapes", *flags)
    ready = pair.ready()
    question = {"model": ready["model"], "messages": [{"role": "user", "content": "What is 3 + 4?"}], "temperature": 0}
    answer = httpx.post(f"{ready['url']}/v1/chat/completions", json=question, timeout=60).json()
    assert answer["choices"][0]["message"]["content"] == "3 + 4 = 7."
    head.process.send_signal(signal.SIGTERM)
    assert (head.process.wait(60), member.process.wait(60)) == (0, 0), head.words + member.words


def test_a_node_with_another_checkpoint_is_refused_everywhere(pair: Pair) -> None:
    other = Path(shutil.copytree(shapes_moe(), pair.folder / "model"))
    config = json.loads((other / "config.json").read_text())
    config["text_config"]["rms_norm_eps"] = 1e-5
    (other / "config.json").write_text(json.dumps(config))
    head = pair.start(0, "shapes", "--ep", "2")
    member = pair.start(1, str(other), "--ep", "2")
    assert (head.process.wait(60), member.process.wait(60)) == (2, 2), head.words + member.words
    for node in (head, member):
        assert "has another checkpoint than rank 0" in node.words and "config.json" in node.words
        assert "Traceback" not in node.words


FACTS = Facts("a", "c0", "w0", "1.0", "2.13.0", "3.11")


@pytest.mark.parametrize(
    ("other", "error", "word"),
    [
        (Facts("b", "c1", "w0", "1.0", "2.13.0", "3.11"), CheckpointError, r"rank 1 \(b\).*config.json"),
        (Facts("b", "c0", "w1", "1.0", "2.13.0", "3.11"), CheckpointError, "weight files"),
        (Facts("b", "c0", "w0", "1.1", "2.13.0", "3.11"), OtherLibrary, "workbench 1.1"),
        (Facts("b", "c0", "w0", "1.0", "2.12.0", "3.11"), OtherLibrary, r"rank 1 \(b\) runs torch 2.12.0, rank 0 \(a\) 2.13.0"),
        (Facts("b", "c0", "w0", "1.0", "2.13.0", "3.12"), OtherLibrary, "python 3.12"),
    ],
)
def test_strangers_are_named(other: Facts, error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        refuse_strangers([FACTS, other])
    refuse_strangers([FACTS, Facts("elsewhere", *[getattr(FACTS, n) for n in ("config", "weights", "workbench", "torch", "python")])])


@pytest.mark.parametrize(
    ("join", "word"),
    [
        ({"proof": b"x" * 32}, "join tokens differ"),
        ({"nodes": 3}, "expects 3 nodes"),
        ({"node": 2}, "no node 2"),
        ({"layout": {"tp": 4, "pp": 1, "dp": 1, "ep": 4}}, "another layout"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_with_words(tmp_path: Path, join: dict[str, Any], word: str) -> None:
    async def scene() -> Any:
        layout = Layout(tp=2)
        head = HeadNode(2, layout, SECRET.encode(), create_run(engine="t", root=tmp_path), lambda death: None, lambda text: None)
        port = free_port()
        await head.listen("127.0.0.1", port)
        wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
        challenge = await wire.read()
        assert isinstance(challenge, Challenge)
        asked = {"node": 1, "nodes": 2, "host": "h", "layout": layout.sizes(), **join}
        asked.setdefault("proof", proof(SECRET.encode(), challenge.nonce, asked["node"]))
        wire.send(Join(**asked))
        answer = await wire.read()
        await wire.close()
        return answer

    answer = asyncio.run(scene())
    assert isinstance(answer, Refused) and word in answer.message and answer.hint


def test_several_nodes_want_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.launcher import serve
    from runtime.serve_config import ServeConfig
    from traces.errors import UsageError

    monkeypatch.delenv(TOKEN, raising=False)
    asked = ServeConfig(model=str(shapes_moe()), ep=2, nodes=2, head="127.0.0.1:1", port=0, run_root=str(tmp_path / "runs"))
    with pytest.raises(UsageError, match=TOKEN):
        serve(asked)
    assert not (tmp_path / "runs").exists()


def test_lanes_that_leave_a_host_are_found() -> None:
    assert Layout(tp=4).split_hosts(2) == [0]
    assert Layout(tp=2, dp=2).split_hosts(2) == []
    assert Layout(tp=3, dp=2).split_hosts(2) == [0, 3]
