"""The same ranks started by torchrun, as on several hosts: they serve, and a death ends everything."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil

from runtime.server_process import start_server


def test_torchrun_starts_the_ranks_and_a_dead_rank_ends_them(tmp_path: Path, requests_of: Any) -> None:
    with start_server(requests_of.config(tmp_path, 2, agent="torchrun")) as server:
        question = {"model": "shapes-moe", "messages": [{"role": "user", "content": "What is 3 + 4?"}]}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=question, timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == "3 + 4 = 7."
        family = psutil.Process(server.process.pid).children(recursive=True)
        os.kill(next(process.pid for process in family if process.name() == "wb-rank1"), signal.SIGKILL)
        assert server.process.wait(60) == 1
        assert any("rank 1 died first" in line for line in server.said)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not alive
