"""A small recorded run with known numbers: four ranks, four layers, sixteen experts, half a minute, rank 2 too hot.

Everything is computed from indices, so that every test can say what it must see.
"""

from __future__ import annotations

import asyncio
import html
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.worker import WorkerFailed

from traces import schema
from traces.producer import Recorder
from traces.run import Run, create_run
from traces.store import open_run
from traces.table import Table
from workbench.tui.app import WorkbenchApp
from workbench.tui.screens.base import DataScreen

MS, SECOND = 1_000_000, 1_000_000_000
START = 1_764_000_000 * SECOND  # 2025-11-24 16:00:00 UTC
STEPS, STEP_MS, RANKS, LAYERS, EXPERTS, TOP_K = 300, 100, 4, 4, 16, 2
HOT_RANK, HOT_EXPERT = 2, 9
SEGMENTS = ("attention", "router", "exchange", "dispatch", "experts", "combine")


def _steps() -> Iterator[tuple[Table, dict[str, Any]]]:
    for step in range(STEPS):
        for rank in range(RANKS):
            busy = 60 if rank == HOT_RANK else 20
            yield schema.STEP, {
                "step": step, "rank": rank, "stage": 0, "micro_batch": 0, "ts": START + step * STEP_MS * MS, "dur": 80 * MS,
                "cpu": busy * MS, "sync": (0 if rank == HOT_RANK else 4) * MS, "prefill_tokens": 100 if step % 10 == rank else 0,
                "decode_tokens": 8, "context_tokens": 512, "running": 8, "waiting": 2 if rank == HOT_RANK else 0,
                "kv_used": 40 + 10 * rank, "kv_total": 100, "preempted": 0, "graph": None, "placement": 0, "requests": ["0" * 31 + "1"],
            }  # fmt: skip
            if step % 10 == 0:
                yield from _detail(step, rank)


def _detail(step: int, rank: int) -> Iterator[tuple[Table, dict[str, Any]]]:
    ts = START + step * STEP_MS * MS
    for layer in range(LAYERS):
        enter = ts + layer * 18 * MS
        experts = 12 if rank == HOT_RANK else 4
        yield schema.LAYER, {
            "step": step, "rank": rank, "stage": 0, "micro_batch": 0, "layer": layer, "ts": enter, "attention": 2 * MS, "router": MS // 2,
            "exchange": MS // 4, "dispatch": MS, "experts": experts * MS, "combine": (13 - experts) * MS, "attention_cpu": 2 * MS,
            "experts_cpu": experts * MS, "tokens_in": 8, "tokens_routed": 4 * experts, "active": 4, "clock": "host",
        }  # fmt: skip
        arrived = enter + 3 * MS + experts * MS
        yield schema.COLLECTIVE, {
            "step": step, "rank": rank, "group": "ep", "seq": step * LAYERS + layer, "layer": layer, "op": "combine", "enter": arrived,
            "exit": enter + 16 * MS, "sent": [1024] * RANKS, "received": [1024] * RANKS, "clock": "host",
        }  # fmt: skip


def _experts() -> Iterator[tuple[Table, dict[str, Any]]]:
    for window in range(30):
        for rank in range(RANKS):
            for layer in range(LAYERS):
                tokens = [10 + expert + (100 if expert == HOT_EXPERT and layer == 1 else 0) for expert in range(EXPERTS)]
                physical = [4 * tokens[rank * 4 + slot] for slot in range(4)]
                yield schema.EXPERT_LOAD, {
                    "ts": START + (window + 1) * SECOND, "step_first": window * 10, "step_last": window * 10 + 9, "rank": rank,
                    "layer": layer, "placement": 0, "steps": 10, "tokens_in": sum(tokens) // TOP_K, "tokens": tokens,
                    "physical": physical, "dropped": 0, "padding": 0, "imbalance_p50": 1.5, "imbalance_p99": 2.0,
                    "above_null": 0.9 if layer == 1 else 0.1,
                }  # fmt: skip
    for layer in range(LAYERS):
        yield schema.PLACEMENT, {
            "placement": 0, "ts": START, "step": 0, "layer": layer, "physical_to_logical": list(range(EXPERTS)), "source": "initial",
            "reason": "contiguous", "moved": 0, "stall": 0, "slot_hashes": [],
        }  # fmt: skip


def trace_id(index: int) -> str:
    return f"{index + 1:032x}"


def _requests() -> Iterator[tuple[Table, dict[str, Any]]]:
    for index in range(24):
        trace, start, rank = trace_id(index), START + index * SECOND, index % RANKS
        decode = 400 + 50 * rank
        parts = [("queue", 0, 20), ("tokenize", 20, 5), ("prefill", 25, 75), ("decode", 100, decode), ("send", 100 + decode, 10)]
        total = parts[-1][1] + parts[-1][2]
        attrs = {"moe.rank": rank, "gen_ai.usage.input_tokens": 100 + index, "gen_ai.usage.output_tokens": 9}
        yield schema.SPAN, _span(trace, "0", None, "request", start, total, attrs)
        for number, (name, at, took) in enumerate(parts):
            yield schema.SPAN, _span(trace, f"{number + 1}", "0", name, start + at * MS, took, {})
        for token in range(9):
            ts = start + (100 + 50 * token) * MS
            yield schema.TOKEN, {"ts": ts, "trace_id": trace, "index": token, "step": index * 10 + token, "rank": rank}


def _span(trace: str, span: str, parent: str | None, name: str, ts: int, ms: int, attrs: dict[str, Any]) -> dict[str, Any]:
    return {
        "ts": ts, "dur": ms * MS, "trace_id": trace, "span_id": trace[-8:] + f"{span:0>8}", "name": name,
        "parent_id": None if parent is None else trace[-8:] + f"{parent:0>8}", "kind": "server", "resource_id": "api", "status": "ok",
        "attrs": attrs,
    }  # fmt: skip


def _samples() -> Iterator[tuple[Table, dict[str, Any]]]:
    for rank in range(RANKS):
        yield schema.MEMORY, {
            "ts": START + rank, "resource_id": f"rank{rank}", "rank": rank, "phase": "serve", "rss_anon": (300 + rank) << 20,
            "rss_file": 1 << 20, "rss_shmem": 0, "hwm": 400 << 20, "cgroup_anon": None, "cgroup_file": None, "cgroup_limit": None,
            "device_allocated": None, "device_reserved": None, "device_free": None,
        }  # fmt: skip
    for index, (kind, rank) in enumerate((("config", None), ("window", None), ("gc", 1))):
        yield schema.EVENT, {
            "ts": START + (5 + index) * SECOND, "dur": 45 * MS if kind == "gc" else 0, "resource_id": "api", "rank": rank, "kind": kind,
            "attrs": {"generation": 2} if kind == "gc" else {"steps": 20},
        }  # fmt: skip
    yield schema.LOG, {
        "ts": START + SECOND, "resource_id": "rank1", "level": "WARNING", "logger": "runtime.engine", "message": "a log line of rank 1",
        "trace_id": None, "attrs": {},
    }  # fmt: skip


def story() -> Iterator[tuple[Table, dict[str, Any]]]:
    """Every row of the run as (table, values)."""
    yield from _steps()
    yield from _experts()
    yield from _requests()
    yield from _samples()
    yield schema.DROP, {"ts": START, "resource_id": "rank0", "table": "layer", "rows": 12, "reason": "ring"}


def record(root: Path) -> Run:
    """The story as a run folder that is closed."""
    run = create_run(engine="workbench", model="shapes-moe", root=root, world_size=RANKS, layout={"dp": RANKS, "ep": RANKS})
    recorder = Recorder.open(run, "story", ship=False)
    for table, values in story():
        recorder.writer(table)(*(values.get(column.name) if column.nullable else values[column.name] for column in table.columns))
    recorder.close()
    run.update(id="20251124-160000-shapes-moe-3f2a", created=START, state="closed")
    return Run(run.path)


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that the screens show. Tests do not change it."""
    return record(tmp_path_factory.mktemp("shown"))


@pytest.fixture(autouse=True)
def universal_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clock times on the screen do not depend on where the test runs."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def app(shown: Run) -> WorkbenchApp:
    return make_app(shown)


@pytest.fixture
def app_of() -> Callable[..., WorkbenchApp]:
    return make_app


def make_app(run: Run, **changes: Any) -> WorkbenchApp:
    """The application with a clock that stands still, and colours whatever the terminal of the test."""
    return WorkbenchApp(lambda: open_run(run), run, **{"clock": lambda: START + 40 * SECOND, "plain": False, **changes})


Scenario = Callable[[Pilot[None]], Awaitable[None]]


@pytest.fixture
def drive() -> Callable[..., None]:
    """Runs an application without a terminal, lets its first reading arrive, and hands it to a scenario."""

    def run(app: WorkbenchApp, scenario: Scenario, size: tuple[int, int] = (100, 30)) -> None:
        async def whole() -> None:
            async with app.run_test(size=size, notifications=True) as pilot:
                await settle(pilot)
                await scenario(pilot)

        asyncio.run(whole())

    return run


async def settle(pilot: Pilot[None]) -> None:
    """Until no reading is in progress and what it brought is drawn."""
    end = time.monotonic() + 60
    while True:
        with suppress(WorkerFailed):  # what a failed reading does is what some tests look at
            await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        if not isinstance(pilot.app.screen, DataScreen) or pilot.app.screen.idle or time.monotonic() > end:
            break
    await pilot.pause()


async def press(pilot: Pilot[None], *keys: str) -> str:
    """Presses keys one after the other and returns what then stands on the screen."""
    for key in keys:
        await pilot.press(key)
        await settle(pilot)
    await settle(pilot)
    return screen_text(pilot)


def screen_text(pilot: Pilot[None]) -> str:
    """The screen as lines of text, as a person reads it."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for x, y, words in re.findall(r'<text class="[^"]*r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', pilot.app.export_screenshot()):
        lines.setdefault(float(y), []).append((float(x), html.unescape(words).replace("\xa0", " ")))
    return "\n".join(_line(parts) for _, parts in sorted(lines.items()))


def _line(parts: list[tuple[float, str]]) -> str:
    """Pieces at their columns; a column of the picture is 12.2 units wide."""
    line = ""
    for x, words in sorted(parts):
        line = line.ljust(round(x / 12.2)) + words
    return line


@pytest.fixture
def keys() -> Callable[..., Awaitable[str]]:
    return press


@pytest.fixture
def reading() -> Callable[[Pilot[None]], str]:
    return screen_text


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, socket: Path, size: tuple[int, int]) -> None:
        self._tmux = ["tmux", "-f", "/dev/null", "-S", str(socket)]
        self._size = size

    def run(self, command: str, **environment: str) -> None:
        """Starts a command in a shell that stays when it ends."""
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM", "TMUX")}
        shell = "env PS1='$ ' bash --norc --noprofile"
        width, height = map(str, self._size)
        subprocess.run([*self._tmux, "new-session", "-d", "-x", width, "-y", height, shell], check=True, env=inherited)
        words = " ".join(f"{name}={value}" for name, value in environment.items())
        self.type(f"cd {Path(__file__).parents[3]}; clear; env {words} {command}", "Enter")

    def type(self, *keys: str) -> None:
        subprocess.run([*self._tmux, "send-keys", *keys], check=True)

    def text(self, *options: str) -> str:
        done = subprocess.run([*self._tmux, "capture-pane", "-p", *options], check=True, capture_output=True, text=True)
        return done.stdout

    def wait(self, words: str, *options: str, patience: float = 120.0) -> str:
        """Until the words (a regular expression) stand on the screen; a screen that never says them is a failure."""
        end = time.monotonic() + patience
        while not re.search(words, text := self.text(*options)):
            assert time.monotonic() < end, f"{words!r} did not come up in\n{text}"
            time.sleep(0.2)
        return text

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(size: tuple[int, int] = (100, 30)) -> Terminal:
        opened.append(Terminal(tmp_path / f"tmux{len(opened)}", size))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def tui() -> Callable[[Run], str]:
    """The command that shows a run."""
    return lambda run: f"{sys.executable} -m workbench tui --run {run.path}"


@pytest.fixture
def settled() -> Callable[[Pilot[None]], Awaitable[None]]:
    return settle
