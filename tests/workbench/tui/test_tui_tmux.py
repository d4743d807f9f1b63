"""The screen in a real terminal: what a person sees, whatever the terminal can do, and nothing of it is left behind."""

from __future__ import annotations

import re
import shutil
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: apt-get install tmux")

DEADLINE = 120.0  # seconds
PROMPT = r"(?m)^\$ *$"
ROOT = Path(__file__).parents[3]


def test_a_person_looks_at_a_run_and_leaves(terminal, tui, shown):
    term = terminal()
    term.run(tui(shown), TZ="UTC", TERM="xterm-256color", COLORTERM="truecolor")
    text = term.wait(r"end to end +585 ms")
    assert "■ recorded 2025-11-24 16:00  shapes-moe dp4 ep4" in text
    assert "1 overview   2 experts   3 playbook   4 ranks   5 requests   6 log" in text
    term.type("2")
    text = term.wait(r"layer 1 · expert 9")
    assert re.search(r"L1 .*\[5\.0\].*1\.87×", text) and "rank 2 slot 1" in text
    assert "38;2;" in term.text("-e") or "48;2;" in term.text("-e")
    term.type("d")
    text = term.wait(r"(problem|warning) +\d+ checks in", "-J")
    assert re.search(r"✖ fail +Expert load uneven", text) and "rank 2" in text
    term.type("5")
    term.wait(r"decode .*550 ms")
    term.type("?")
    term.wait(r"run the playbook of the chosen symptom")
    term.type("Escape")
    term.wait(r"1 overview")
    term.type("q")
    text = term.wait(PROMPT)
    assert "Traceback" not in text and "throughput" not in text  # the shell's own screen is back


@pytest.mark.parametrize(
    "environment",
    [{"TERM": "xterm-256color", "NO_COLOR": "1"}, {"TERM": "screen"}, {"TERM": "vt100"}, {"TERM": "dumb"}],
    ids=lambda environment: " ".join(f"{name}={value}" for name, value in environment.items()),
)
def test_without_colours_the_same_words_and_bars_are_there(terminal, tui, shown, environment):
    term = terminal((80, 24))
    term.run(tui(shown), TZ="UTC", **environment)
    term.wait(r"end to end +585 ms")
    term.type("2")
    text = term.wait(r"layer 1 · expert 9")
    assert "▁▂▃▄▅▆▇█" in text  # the legend of heat as heights
    term.type("q")
    text = term.wait(PROMPT)
    assert "Traceback" not in text


def test_nothing_paints_over_the_screen(terminal, shown, tmp_path):
    """A log line, a warning and a child that writes on stderr while the screen is up end in the run's log."""
    noisy = tmp_path / "noisy.py"
    noisy.write_text(
        "import os, subprocess, sys, threading, time, warnings, logging\n"
        "from pathlib import Path\n"
        "from traces.run import Run\n"
        "from workbench.tui.app import run\n"
        "def noise():\n"
        "    from loguru import logger\n"
        "    for _ in range(3):\n"
        "        time.sleep(1)\n"
        "        logger.warning('PAINT loguru')\n"
        "        logging.getLogger('x').warning('PAINT logging')\n"
        "        warnings.warn('PAINT warning')\n"
        "        subprocess.run([sys.executable, '-c', \"import sys; print('PAINT child', file=sys.stderr)\"])\n"
        "        os.write(2, b'PAINT descriptor\\n')\n"
        "    (Path(sys.argv[1]) / 'logs' / 'made-noise').touch()\n"
        "threading.Thread(target=noise, daemon=True).start()\n"
        "sys.exit(run(Run(Path(sys.argv[1]))))\n"
    )
    term = terminal()
    term.run(f"PYTHONPATH={ROOT} {sys.executable} {noisy} {shown.path}", TERM="xterm-256color")
    term.wait(r"end to end +585 ms")
    end = time.monotonic() + DEADLINE
    while not (shown.path / "logs" / "made-noise").exists():
        assert time.monotonic() < end
        time.sleep(0.2)
    assert "PAINT" not in term.text()
    term.type("q")
    term.wait(PROMPT)
    log = (shown.path / "logs" / "tui.log").read_text()
    assert "PAINT loguru" in log and "PAINT logging" in log and "PAINT warning" in log
    stderr = (shown.path / "logs" / "tui.stderr").read_text()
    assert "PAINT child" in stderr and "PAINT descriptor" in stderr
