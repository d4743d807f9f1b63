"""What is different on a terminal: colour, unless NO_COLOR; a bar, which leaves nothing behind. Tables are plain text."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.cli.output import cell, table
from workbench.cli.progress import Bar

ROOT = Path(__file__).parents[2]


def on_a_terminal(*argv: str, **env: str) -> str:
    """What a command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, *argv], cwd=ROOT, env=os.environ | env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux says EIO when the last writer has closed the terminal
            break
        if not chunk:
            break
        written += chunk
    process.wait(30)
    os.close(ours)
    return written.decode()


@pytest.mark.parametrize(
    ("env", "coloured"), [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour(env: dict[str, str], coloured: bool) -> None:
    written = on_a_terminal("-m", "workbench", "runz", **{"NO_COLOR": ""} | env)
    assert ("\x1b[" in written) is coloured
    assert "no command 'runz'" in written


DRAW = """
from workbench.cli.progress import Bar
with Bar("traffic", 4) as bar:
    for done in range(5):
        bar.update(done, "1 failed")
"""


def test_a_bar_is_drawn_and_removed() -> None:
    written = on_a_terminal("-c", DRAW)
    assert "4/4" in written
    assert "1 failed" in written
    assert written.endswith("\r\x1b[K")


def test_no_bar_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("traffic", 4) as bar:
        bar.update(4)
    assert capsys.readouterr() == ("", "")


def test_table_aligns_numbers_right_and_words_left() -> None:
    lines = table(("name", "n"), [("a", 5), ("long name", 1234)]).splitlines()
    assert lines == ["name          n", "─────────  ────", "a             5", "long name  1234"]


def test_cells_are_one_line() -> None:
    assert [cell(None), cell(True), cell(1.23456789), cell("two\nlines"), cell([1, 2])] == ["", "true", "1.23457", "two lines", "[1, 2]"]
