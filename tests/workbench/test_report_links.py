"""The map of links: what a fabric test answered stands in its cells, and a browser draws it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from probes.fabric.answer import Fabric, Node, Timing, fitted
from probes.fabric.reach import Reach
from probes.fabric.record import record
from traces.run import create_run
from workbench.report.page import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTS = 3
SIZES = (4096, 1 << 20, 16 << 20)


def seconds(a: int, b: int, size: int, together: bool = False) -> float:
    """Each pair has its own latency and bandwidth; what the last host receives is slow, and more so while all send."""
    rate = (1e9 + 1e7 * (HOSTS * a + b)) / (10 if b == HOSTS - 1 else 1) / (2 if together else 1)
    return 1e-5 * (1 + a) + size / rate


def fabric(hosts: int = HOSTS) -> Fabric:
    pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    timings = [Timing(a, b, size, seconds(a, b, size)) for a, b in pairs for size in SIZES]
    timings += [Timing(a, b, SIZES[-1], seconds(a, b, SIZES[-1], True), concurrent=True) for a, b in pairs]
    nodes = [Node(n, f"node{n}", str(n), "cpu", {}) for n in range(hosts)]
    return Fabric("gloo", hosts, nodes, [], timings, fitted(timings), 1.0)


def maps(text: str) -> list[dict[str, object]]:
    spec = re.search(r'<script type="application/json" id="spec-links">(.*?)</script>', text, re.DOTALL)
    assert spec is not None
    found: list[dict[str, object]] = json.loads(spec.group(1))["data"]
    return found


def test_cells_are_what_the_test_answered(tmp_path: Path) -> None:
    answer = fabric()
    written = write_report(record(answer, tmp_path))
    assert written.figures == ("links",)
    alone, together, latency = (one["z"] for one in maps(written.path.read_text()))
    for timing in answer.timings:
        grid = together if timing.concurrent else alone
        if timing.size == SIZES[-1]:
            assert grid[timing.src][timing.dst] == pytest.approx(timing.size / timing.seconds / 1e6, rel=1e-3)  # type: ignore[index]
        elif timing.size == SIZES[0]:
            assert latency[timing.src][timing.dst] == pytest.approx(timing.seconds * 1e6, rel=1e-2)  # type: ignore[index]
    assert all(grid[n][n] is None for grid in (alone, together, latency) for n in range(HOSTS))  # type: ignore[index]


def test_many_ranks_are_merged_and_the_worst_pair_stays(tmp_path: Path) -> None:
    written = write_report(record(fabric(70), tmp_path))
    text = written.path.read_text()
    alone, _, latency = (one["z"] for one in maps(text))
    assert len(alone) == 35 and "worst of 2 neighbouring ranks" in text  # type: ignore[arg-type]
    worst = max(seconds(a, b, SIZES[-1]) for a in (2, 3) for b in (0, 1))
    assert alone[1][0] == pytest.approx(SIZES[-1] / worst / 1e6, rel=1e-3)  # type: ignore[index]
    slowest = max(seconds(a, b, SIZES[0]) for a in (2, 3) for b in (0, 1))
    assert latency[1][0] == pytest.approx(slowest * 1e6, rel=1e-2)  # type: ignore[index]


def test_pairs_that_do_not_connect_are_said_and_a_run_without_links_has_no_such_section(tmp_path: Path) -> None:
    cut = Fabric("gloo", 2, fabric(2).nodes, [], [], [], 1.0, [], [Reach(0, 1, None, "no answer"), Reach(1, 0, None, "no answer")])
    assert any("do not connect" in what for what in write_report(record(cut, tmp_path)).missing)
    empty = write_report(create_run(engine="workbench", model="m", root=tmp_path))
    assert "Links between ranks" not in empty.path.read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_draws_the_map_without_an_error(tmp_path: Path) -> None:
    written = write_report(record(fabric(), tmp_path))
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--enable-logging=stderr",
         "--dump-dom", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}", f"file://{written.path}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert 'data-drawn="1"' in done.stdout and done.stdout.count('class="hm"') == 3
    assert "CONSOLE" not in done.stderr, done.stderr
