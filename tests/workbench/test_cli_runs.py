"""Commands over a recorded run: what they print, as text, JSON and CSV, and how they refuse."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traces.run import Run
from workbench.cli.main import run as command

Capture = pytest.CaptureFixture[str]


def asked(capsys: Capture, *argv: str, code: int = 0) -> Any:
    """Runs a command with --json and gives its document."""
    assert command([*argv, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("runs")
class TestRuns:
    def test_table(self, recorded: Run, capsys: Capture) -> None:
        assert command(["runs"]) == 0
        header, rule, line = capsys.readouterr().out.splitlines()
        assert header.split() == ["run", "created", "engine", "model", "ranks", "state", "store"]
        assert set(rule) <= {"─", " "}
        assert line.startswith(recorded.id)

    def test_json(self, recorded: Run, capsys: Capture) -> None:
        document = asked(capsys, "runs")
        assert document["schema"] == "workbench.runs.v1"
        assert [one["id"] for one in document["runs"]] == [recorded.id]
        assert document["runs"][0]["world_size"] == 4


NO_ROOM = "RuntimeError: unable to write to file </torch_123_456>: No space left on device (28)\n"


def test_a_log_is_brought_in_or_judged_and_the_run_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    log = tmp_path / "rank0.log"
    log.write_text(NO_ROOM)
    brought = asked(capsys, "import", str(log))["run"]
    assert [(one["id"], one["state"]) for one in asked(capsys, "runs")["runs"]] == [(brought, "closed")]
    found = asked(capsys, "diagnose", "hang", "--log", str(log), code=3)
    assert found["findings"][0]["id"] == "start.shm"
    assert asked(capsys, "diagnose", "hang", code=3)["run"]["id"] == brought  # latest is what was brought in


def test_no_runs_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "none"))
    assert command(["runs"]) == 0
    assert capsys.readouterr().out == ""
    assert asked(capsys, "runs")["runs"] == []


@pytest.mark.usefixtures("runs")
class TestQuery:
    SQL = "SELECT rank, count(*) AS steps FROM step GROUP BY rank ORDER BY rank"

    def test_table(self, capsys: Capture) -> None:
        assert command(["query", self.SQL]) == 0
        captured = capsys.readouterr()
        assert captured.out.splitlines() == ["rank  steps", "────  ─────", *(f"{rank:>4}  {240:>5}" for rank in range(4))]
        assert captured.err == "4 rows\n"

    def test_json(self, recorded: Run, capsys: Capture) -> None:
        document = asked(capsys, "query", self.SQL)
        assert document["schema"] == "workbench.query.v1"
        assert document["run"] == recorded.id
        assert [column["name"] for column in document["columns"]] == ["rank", "steps"]
        assert document["rows"] == [{"rank": rank, "steps": 240} for rank in range(4)]
        assert document["truncated"] is False

    def test_csv_is_quoted(self, capsys: Capture) -> None:
        assert command(["query", "SELECT 'a,\"b\"' AS word, NULL AS nothing, [1, 2] AS list", "--format", "csv"]) == 0
        assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [["word", "nothing", "list"], ['a,"b"', "", "[1, 2]"]]

    def test_limit_is_said(self, capsys: Capture) -> None:
        assert command(["query", "SELECT * FROM range(10) AS t(n)", "--limit", "3"]) == 0
        captured = capsys.readouterr()
        assert captured.out.splitlines()[2:] == ["0", "1", "2"]
        assert "more rows were left out" in captured.err
        assert asked(capsys, "query", "SELECT * FROM range(10) AS t(n)", "-n", "3")["truncated"] is True

    def test_statement_from_stdin(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 7 AS n"))
        assert asked(capsys, "query", "-")["rows"] == [{"n": 7}]

    @pytest.mark.parametrize(
        ("sql", "words"),
        [
            ("SELEKT 1", "syntax error"),
            ("SELECT * FROM stepp", "SHOW TABLES"),
            ("DROP TABLE step", "read-only"),
            ("SELECT 1; SELECT 2", "2 statements"),
            ("SELECT * FROM read_csv('/etc/passwd')", "disabled"),
            ("", "0 statements"),
        ],
    )
    def test_refusals(self, sql: str, words: str, capsys: Capture) -> None:
        assert command(["query", sql]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert words in captured.err
        assert "hint: " in captured.err
        assert "Traceback" not in captured.err

    def test_unknown_run(self, recorded: Run, capsys: Capture) -> None:
        assert command(["query", "SELECT 1", "--run", recorded.id[:-1] + "x"]) == 2
        assert recorded.id in capsys.readouterr().err

    def test_prefix_and_path_name_a_run(self, recorded: Run, capsys: Capture) -> None:
        for name in (recorded.id[:10], str(recorded.path)):
            assert asked(capsys, "query", "SELECT 1 AS n", "--run", name)["run"] == recorded.id


@pytest.mark.usefixtures("runs")
def test_the_screen_needs_a_terminal(capsys: Capture) -> None:
    assert command(["tui"]) == 2
    err = capsys.readouterr().err
    assert "needs a terminal" in err
    assert "workbench report" in err


@pytest.fixture
def copied(recorded: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the recorded run that a test may spoil, in a folder of its own."""
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    shutil.copytree(recorded.path, tmp_path / recorded.id)
    return tmp_path / recorded.id


def spoil(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads((path / "run.json").read_text())
    change(document)
    (path / "run.json").write_text(json.dumps(document))


@pytest.mark.parametrize("argv", [["query", "SELECT 1"], ["report"], ["diagnose", "tail-latency"], ["fingerprint", "--diff"]])
def test_newer_schema(argv: list[str], copied: Path, capsys: Capture) -> None:
    spoil(copied, lambda document: document.update(schema_version=99))
    words = [copied.name, copied.name] if "--diff" in argv else ["--run", copied.name]
    assert command([*argv, *words]) == 2
    err = capsys.readouterr().err
    assert "schema version 99" in err
    assert "upgrade the workbench" in err


def test_damaged_run_file(copied: Path, capsys: Capture) -> None:
    (copied / "run.json").write_text("{")
    assert command(["query", "SELECT 1", "--run", copied.name]) == 2
    assert "run.json" in capsys.readouterr().err


def test_report_cannot_be_written(recorded: Run, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    assert command(["report", "--run", str(recorded.path), "--output", str(tmp_path / "file" / "page.html")]) == 2
    err = capsys.readouterr().err
    assert "the report cannot be written to" in err
    assert "--output" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_read_only_run_is_readable(copied: Path, capsys: Capture) -> None:
    for path in (copied, *copied.rglob("*")):
        path.chmod(stat.S_IRUSR | stat.S_IXUSR if path.is_dir() else stat.S_IRUSR)
    try:
        assert asked(capsys, "query", "SELECT count(*) AS n FROM step")["rows"] == [{"n": 960}]
        assert command(["report"]) == 2
    finally:
        for path in (copied, *copied.rglob("*")):
            path.chmod(stat.S_IRWXU)


@pytest.mark.usefixtures("runs")
class TestDiagnose:
    def test_unknown_symptom(self, capsys: Capture) -> None:
        assert command(["diagnose", "headache"]) == 2
        assert "known symptoms: cross-node-throughput, garbled-output, hang, image-drift" in capsys.readouterr().err

    def test_exit_code_document_and_text_agree(self, capsys: Capture, tmp_path: Path) -> None:
        page = tmp_path / "found.md"
        codes = {"healthy": 0, "problem": 3, "warning": 4, "inconclusive": 5, "error": 1}
        code = command(["diagnose", "tail-latency", "--json", "--markdown", str(page)])
        document = json.loads(capsys.readouterr().out)
        assert document["schema"] == "workbench.diagnosis.v1"
        assert codes[document["verdict"]] == code == document["invocation"]["exit_code"]
        assert page.read_text().startswith(f"# tail-latency: {document['verdict']}")
        assert command(["diagnose", "tail-latency"]) == code
        out = capsys.readouterr().out
        assert document["verdict"] in out.splitlines()[0]
        for check in document["checks"]:
            assert check["id"] in out

    def test_the_diagnosis_is_kept_with_the_run(self, capsys: Capture) -> None:
        command(["diagnose", "tail-latency", "--json"])
        document = json.loads(capsys.readouterr().out)
        kept = asked(capsys, "query", "SELECT body FROM document WHERE kind = 'workbench.diagnosis.v1' ORDER BY ts DESC LIMIT 1")
        assert json.loads(kept["rows"][0]["body"])["invocation"] == document["invocation"]

    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            (["hang", "--log", "a.log"], "--run and --log are two things to judge"),
            (["image-drift", "--endpoint", "http://localhost:1", "--model", "m"], "--run and --endpoint are two things to judge"),
            (["image-drift", "--image", "a.png", "--observed", "b.npy"], "--run and --image are two things to judge"),
            (["oom-on-load", "--model", "m", "--limit", "1GiB"], "--run and --model are two things to judge"),
        ],
    )
    def test_two_things_to_judge_are_refused(self, argv: list[str], words: str, recorded: Run, capsys: Capture) -> None:
        assert command(["diagnose", *argv, "--run", recorded.id]) == 2
        assert words in capsys.readouterr().err

    @pytest.mark.parametrize("symptom", ["tail-latency", "garbled-output", "image-drift"])
    def test_a_log_says_nothing_of_some_symptoms(self, symptom: str, capsys: Capture) -> None:
        assert command(["diagnose", symptom, "--log", "a.log"]) == 2
        assert f"--log is not for {symptom}" in capsys.readouterr().err

    def test_an_endpoint_that_is_no_address(self, capsys: Capture) -> None:
        assert command(["diagnose", "image-drift", "--endpoint", "notaurl", "--model", "m"]) == 2
        assert "no address" in capsys.readouterr().err

    def test_markdown_that_cannot_be_written(self, tmp_path: Path, capsys: Capture) -> None:
        assert command(["diagnose", "tail-latency", "--markdown", str(tmp_path / "no" / "page.md")]) == 2
        assert "--markdown" in capsys.readouterr().err


class TestFingerprint:
    def test_json(self, capsys: Capture) -> None:
        document = asked(capsys, "fingerprint")
        assert document["schema"] == "workbench.fingerprint.v1"
        assert document["packages"]["duckdb"]

    def test_difference_of_files(self, tmp_path: Path, capsys: Capture) -> None:
        a, b = tmp_path / "a.json", tmp_path / "b.json"
        a.write_text(json.dumps({"packages": {"torch": "2.12"}, "os": {"kernel": "6"}}))
        b.write_text(json.dumps({"packages": {"torch": "2.13"}, "os": {"kernel": "6"}}))
        document = asked(capsys, "fingerprint", "--diff", str(a), str(b))
        assert document["schema"] == "workbench.fingerprint-diff.v1"
        assert document["differences"] == [{"key": "packages.torch", "a": "2.12", "b": "2.13"}]
        assert command(["fingerprint", "--diff", str(a), str(a)]) == 0
        assert capsys.readouterr().err == "no difference\n"

    def test_ranks_of_runs(self, copied: Path, capsys: Capture) -> None:
        kernels = {"rank0": {"os": {"kernel": "6.1"}}, "rank1": {"os": {"kernel": "6.2"}}}
        spoil(copied, lambda document: document.update(fingerprints=kernels))
        changes = asked(capsys, "fingerprint", "--diff", f"{copied.name}:0", f"{copied.name}:rank1")["differences"]
        assert changes == [{"key": "os.kernel", "a": "6.1", "b": "6.2"}]
        assert command(["fingerprint", "--diff", copied.name, f"{copied.name}:7"]) == 2
        assert "it holds rank0, rank1" in capsys.readouterr().err

    @pytest.mark.parametrize("text", ["not json", "[]"])
    def test_no_fingerprint_in_a_file(self, text: str, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "x").write_text(text)
        assert command(["fingerprint", "--diff", str(tmp_path / "x"), str(tmp_path / "x")]) == 2
        assert "is no fingerprint" in capsys.readouterr().err


class TestDoctor:
    def test_document(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
        document = asked(capsys, "doctor")
        assert document["schema"] == "workbench.doctor.v1"
        assert document["ok"] is True
        assert {check["name"] for check in document["checks"]} >= {"packages", "torch", "store", "runs folder", "model"}

    def test_a_failed_check_is_exit_code_3(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "file" / "runs"))
        document = asked(capsys, "doctor", code=3)
        failed = [check for check in document["checks"] if check["status"] == "fail"]
        assert [check["name"] for check in failed] == ["runs folder"]
        assert "WORKBENCH_RUNS" in failed[0]["remedy"]
