"""How a server ends: asked to, by a fault of its input, by the death of a rank, by the death of its parent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from runtime import server_process
from runtime.control_client import ControlClient
from runtime.launcher import ServerProcess, serve, start_server
from runtime.server_address import PortInUse
from runtime.shipped import shapes_moe
from traces.errors import CheckpointError, UsageError
from traces.run import list_runs
from traces.store import open_run


@pytest.fixture
def start(tmp_path: Path, requests_of: Any) -> Iterator[Callable[..., ServerProcess]]:
    started: list[ServerProcess] = []

    def begin(ep: int = 2, **settings: Any) -> ServerProcess:
        started.append(start_server(requests_of.config(tmp_path / "runs", ep, **settings)))
        return started[-1]

    yield begin
    for server in started:
        server.stop()


def processes_of(server: ServerProcess) -> list[psutil.Process]:
    """The server and everything below it: agent, ranks, collector."""
    parent = psutil.Process(server.process.pid)
    return [parent, *parent.children(recursive=True)]


def wait_gone(processes: list[psutil.Process], seconds: float = 30) -> None:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    alive = [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert not alive, [p.cmdline() for p in alive]


def copy_of_model(folder: Path) -> Path:
    return Path(shutil.copytree(shapes_moe(), folder))


def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path, requests_of: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config = requests_of.config(tmp_path / "runs", 2)
        with pytest.raises(PortInUse, match=str(port)) as caught:
            serve(type(config)(**{**{f: getattr(config, f) for f in config.__struct_fields__}, "port": port}))
    assert "--port" in caught.value.hint and caught.value.exit_code == 2
    assert not (tmp_path / "runs").exists()


def test_an_unsupported_architecture_is_told_before_anything_starts(tmp_path: Path, requests_of: Any) -> None:
    model = copy_of_model(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "mamba9", "architectures": ["Mamba9"]}))
    asked = requests_of.config(tmp_path / "runs", 2)
    with pytest.raises(CheckpointError, match="Mamba9"):
        serve(type(asked)(model=str(model), ep=2, port=0, run_root=str(tmp_path / "runs")))


def test_experts_that_cannot_be_split_are_told(tmp_path: Path, requests_of: Any) -> None:
    with pytest.raises(UsageError, match="16 experts cannot be split over 3 ranks"):
        serve(requests_of.config(tmp_path / "runs", 3))


def test_what_a_rank_finds_wrong_reaches_the_person_in_one_sentence(tmp_path: Path, requests_of: Any) -> None:
    """Weights that are no numbers pass every header check; only the rank that reads them can tell."""
    model = copy_of_model(tmp_path / "model")
    index = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
    file = model / index["model.language_model.norm.weight"]
    raw = bytearray(file.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8 : 8 + length])["model.language_model.norm.weight"]["data_offsets"]
    raw[8 + length + begin : 8 + length + end] = b"\xff" * (end - begin)
    file.write_bytes(raw)
    config = requests_of.config(tmp_path / "runs", 2)
    with pytest.raises(UsageError) as caught:
        start_server(type(config)(model=str(model), ep=2, port=0, run_root=str(tmp_path / "runs")))
    assert "norm" in str(caught.value) and "Traceback" not in str(caught.value)
    (run,) = list_runs(tmp_path / "runs")
    assert run.info.state == "crashed"
    assert "Traceback" in (run.path / "logs" / "rank0.log").read_text()


def test_sigterm_ends_everything_and_closes_the_run(start: Callable[..., ServerProcess], requests_of: Any) -> None:
    server = start()
    processes = processes_of(server)
    assert len(processes) == 1 + 1 + 2 + 1  # server, agent, ranks, collector
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=requests_of.chat("What is 2 + 3?"), timeout=60)
    assert answer.status_code == 200
    assert server.stop() == 0
    wait_gone(processes)
    assert server.run.info.state == "closed"
    with open_run(server.run) as store:
        assert store.rows("SELECT count(*) AS n FROM request")[0]["n"] == 1
        assert store.rows("SELECT sum(rows) AS n FROM loss")[0]["n"] in (0, None)


def test_requests_in_flight_are_answered_before_a_stop(start: Callable[..., ServerProcess], requests_of: Any) -> None:
    server = start(ep=1, drain_seconds=120)
    body = {**requests_of.chat("Count up from 1.", max_tokens=400), "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(line for line in lines if '"content":"' in line and '"content":""' not in line)
        server.process.send_signal(signal.SIGTERM)
        while httpx.get(f"{server.url}/health").json()["status"] == "ok":
            time.sleep(0.02)
        refused = httpx.post(f"{server.url}/v1/chat/completions", json=requests_of.chat("What is 2 + 3?"))
        assert refused.status_code == 503 and "shutting down" in refused.json()["error"]["message"]
        assert "data: [DONE]" in list(lines)
    assert server.stop() == 0


def test_a_dead_rank_fails_its_requests_and_ends_the_server_with_words(start: Callable[..., ServerProcess], requests_of: Any) -> None:
    server = start()
    processes = processes_of(server)
    ranks = {int(p.name().removeprefix("wb-rank")): p for p in processes if p.name().startswith("wb-rank")}
    body = {**requests_of.chat("Count up from 1.", max_tokens=900), "ignore_eos": True}
    answers: list[Any] = []

    def whole() -> None:
        answers.append(httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json())

    waiting = threading.Thread(target=whole)
    waiting.start()
    with ControlClient.for_run(server.run) as control:
        while not any(load["running"] for load in control.state()["loads"]):
            time.sleep(0.02)
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json={**body, "stream": True}, timeout=60) as response:
        lines = response.iter_lines()
        next(line for line in lines if '"content":"' in line and '"content":""' not in line)
        ranks[1].kill()
        last = [line for line in lines if line.startswith("data: {")][-1]
    waiting.join()
    for error in (json.loads(last.removeprefix("data: ")), answers[0]):
        assert "rank 1" in error["error"]["message"]
    assert server.process.wait(60) == 1
    wait_gone(processes)
    words = "\n".join(server.said)
    assert "rank 1 died first" in words and "SIGKILL" in words and "rank1.log" in words
    assert "Traceback" not in words
    assert server.run.info.state == "crashed"
    with open_run(server.run) as store:
        (death,) = store.rows("SELECT * FROM event WHERE kind = 'death'")
        assert (death["rank"], json.loads(death["attrs"])["exit_code"]) == (1, -signal.SIGKILL)


@pytest.mark.parametrize("victim", ["server", "agent"])
def test_nothing_outlives_a_kill(start: Callable[..., ServerProcess], victim: str) -> None:
    server = start()
    processes = processes_of(server)
    target = processes[0] if victim == "server" else next(p for p in processes if p.name() == "wb-agent")
    os.kill(target.pid, signal.SIGKILL)
    server.process.wait(60)
    wait_gone(processes)


def test_the_queue_is_bounded_and_preemption_keeps_the_answers(start: Callable[..., ServerProcess], requests_of: Any) -> None:
    """12 blocks of 16 tokens for two sequences that want 8 each: one of them is computed twice and must not notice."""
    server = start(ep=1, kv_blocks=12, max_queue=2)
    url = f"{server.url}/v1/chat/completions"
    bodies = [{**requests_of.chat(f"Count up from {n}.", max_tokens=100), "ignore_eos": True} for n in (1, 5)]
    alone = [httpx.post(url, json=body, timeout=60).json()["choices"][0]["message"]["content"] for body in bodies]
    together: list[Any] = [None, None]

    def ask(number: int) -> None:
        together[number] = httpx.post(url, json=bodies[number], timeout=60).json()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    with ControlClient.for_run(server.run) as control:
        while control.state()["requests"] < 2:
            time.sleep(0.02)
    refused = httpx.post(url, json=requests_of.chat("What is 2 + 3?"), timeout=60)
    for thread in threads:
        thread.join()
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert "max_queue" in refused.json()["error"]["message"]
    assert [answer["choices"][0]["message"]["content"] for answer in together] == alone
    metrics = httpx.get(f"{server.url}/metrics").text
    preempted = next(line for line in metrics.splitlines() if line.startswith("vllm:num_preemptions_total{"))
    assert float(preempted.rpartition(" ")[2]) >= 1


def test_a_stop_while_loading_leaves_nothing(tmp_path: Path, requests_of: Any) -> None:
    config = requests_of.config(tmp_path / "runs", 2)
    process = server_process._spawn(config, ())
    parent = psutil.Process(process.pid)
    while not any(p.name() == "wb-agent" for p in parent.children()):
        assert process.poll() is None
        time.sleep(0.01)
    processes = parent.children(recursive=True)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    wait_gone(processes)


def test_a_killed_collector_comes_back_and_nothing_is_missing(start: Callable[..., ServerProcess], requests_of: Any) -> None:
    server = start(ep=1)
    url = f"{server.url}/v1/chat/completions"
    assert httpx.post(url, json=requests_of.chat("What is 2 + 3?"), timeout=60).status_code == 200
    first = server.run.collector()
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    assert httpx.post(url, json=requests_of.chat("What is 3 + 3?"), timeout=60).status_code == 200
    deadline = time.monotonic() + 60
    while (again := server.run.collector()) is None or again.pid == first.pid:
        assert time.monotonic() < deadline, "no new collector"
        time.sleep(0.1)
    assert server.stop() == 0
    with open_run(server.run) as store:
        assert store.rows("SELECT count(*) AS n FROM request")[0]["n"] == 2
