"""The command line as a person meets it: help, version, unknown words, errors, exit codes, quiet pipes."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from traces.errors import BadAnswer
from workbench.cli import main as entry
from workbench.version import SOURCE_VERSION

ROOT = Path(__file__).parents[2]


def workbench(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "workbench", *argv], capture_output=True, text=True, timeout=120, cwd=ROOT, env=os.environ | env, check=False
    )  # fmt: skip


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("no-runs"))


def test_help_lists_every_command() -> None:
    done = workbench("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for name in entry.COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("name", list(entry.COMMANDS))
def test_every_command_loads_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: workbench {name}")
    assert isinstance(entry.cli.get_command(click.Context(entry.cli), name), click.Command)


def test_help_of_a_command_imports_nothing_heavy() -> None:
    code = (
        "import sys, contextlib, io\nfrom workbench.cli.main import COMMANDS, run\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n    [run([name, '--help']) for name in COMMANDS]\n"
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert not set(done.stdout.split()) & {"torch", "textual", "plotly", "pandas", "pyarrow", "duckdb", "numpy", "starlette", "httpx"}


def test_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == SOURCE_VERSION
    assert workbench("--version").stdout == f"workbench {SOURCE_VERSION}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    done = workbench("--completion", shell)
    assert done.returncode == 0
    assert f"_WORKBENCH_COMPLETE={shell}_complete" in done.stdout


def test_completion_of_commands() -> None:
    done = workbench(_WORKBENCH_COMPLETE="bash_complete", COMP_WORDS="workbench di", COMP_CWORD="1")
    assert done.stdout.split() == ["plain,diagnose"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["runz"], ["no command 'runz'", "did you mean `workbench runs`?"]),
        (["query"], ["missing argument 'SQL'", "`workbench query --help`"]),
        (["query", "--frmat", "csv", "SELECT 1"], ["no such option", "--format"]),
        (["runs", "--limit", "none"], ["--limit"]),
        (["demo", "--ranks", "1"], ["--ranks"]),
        (["serve"], ["missing MODEL"]),
        (["serve", "nowhere/at/all"], ["no model folder at nowhere/at/all", "config.json"]),
        (["serve", "shapes", "--port", "99999"], ["port 99999 does not exist"]),
        (["serve", "--config", "absent.toml"], ["absent.toml"]),
        (["traffic", "not a url at all", "--rate", "1", "--concurrency", "1"], ["either a rate or a concurrency"]),
        (["traffic", "ftp://x", "--requests", "1"], ["is not the URL of a server"]),
        (["traffic", "http://127.0.0.1:9", "--mix", "poems"], ["no traffic mix 'poems'", "prefill-heavy"]),
    ],
)
def test_usage_errors_name_the_thing_and_the_remedy(argv: list[str], words: list[str], empty: str) -> None:
    done = workbench(*argv, WORKBENCH_RUNS=empty)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    "argv", [["query", "SELECT 1"], ["report"], ["diagnose", "tail-latency"], ["tui"], ["fingerprint", "--diff", "one", "two"]]
)
def test_no_run_at_all(argv: list[str], empty: str) -> None:
    done = workbench(*argv, WORKBENCH_RUNS=empty)
    assert done.returncode == 2, done.stderr
    assert "error: there is no run in" in done.stderr
    assert "hint: " in done.stderr


def test_a_server_that_does_not_answer_is_no_usage_error(empty: str) -> None:
    done = workbench("traffic", "http://127.0.0.1:9", "--requests", "1", WORKBENCH_RUNS=empty)
    assert done.returncode == 1
    assert "no server answers at http://127.0.0.1:9/v1/models" in done.stderr
    assert "hint: start it with `workbench serve`" in done.stderr


def _failing(error: BaseException) -> click.Command:
    @click.command()
    def broken() -> None:
        raise error

    return broken


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """Makes `workbench runs` raise; crash logs go to a folder of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def install(error: BaseException) -> None:
        monkeypatch.setattr(entry.LazyGroup, "get_command", lambda self, ctx, name: _failing(error))

    return install


def test_an_error_of_ours_is_two_lines(breaks: object, capsys: pytest.CaptureFixture[str]) -> None:
    breaks(BadAnswer("shard 3 is damaged", "download it again"))  # type: ignore[operator]
    assert entry.run(["runs"]) == 3
    assert capsys.readouterr().err == "error: shard 3 is damaged\nhint: download it again\n"


def test_a_crash_is_one_sentence_and_a_log(breaks: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    breaks(KeyError("rank"))  # type: ignore[operator]
    assert entry.run(["runs"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: internal error: KeyError: 'rank'\nhint: the traceback is in ")
    assert "Traceback" not in err
    log = Path(err.split("is in ")[1].strip())
    assert log.is_relative_to(tmp_path)
    assert "Traceback (most recent call last)" in log.read_text()
    assert "$ workbench runs" in log.read_text()


def test_verbose_shows_the_traceback(breaks: object, capsys: pytest.CaptureFixture[str]) -> None:
    breaks(KeyError("rank"))  # type: ignore[operator]
    assert entry.run(["-v", "runs"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_interrupted(breaks: object, capsys: pytest.CaptureFixture[str]) -> None:
    breaks(KeyboardInterrupt())  # type: ignore[operator]
    assert entry.run(["runs"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m workbench --completion bash | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode in (0, 141)  # 0 where the writer was faster than the reader's end
    assert done.stderr == ""


def test_a_reader_that_is_gone_before_the_answer(empty: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    argv = [sys.executable, "-m", "workbench", "runs", "--json"]
    done = subprocess.run(argv, stdout=theirs, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=120, check=False,
                          env=os.environ | {"WORKBENCH_RUNS": empty})  # fmt: skip
    os.close(theirs)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_reader_that_goes_away_in_a_long_answer(empty: str) -> None:
    command = f"{sys.executable} -m workbench fingerprint --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode in (0, 141)
    assert done.stderr == ""
