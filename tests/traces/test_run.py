from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from traces.errors import NotWritable, SchemaTooNew, UnknownRun
from traces.run import Run, create_run, find_run, list_runs, runs_root, whole_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_a_new_run_is_the_latest_and_says_what_it_is(root: Path) -> None:
    first = create_run(engine="workbench", model="models/Shapes MoE", root=root, world_size=4, layout={"ep": 4})
    second = create_run(engine="vllm", root=root)
    assert first.id.endswith(first.path.name) and "-shapes-moe-" in first.id
    assert find_run(root=root).id == second.id
    assert (root / "latest").resolve() == second.path
    assert (first.info.world_size, first.info.layout, first.info.state) == (4, {"ep": 4}, "running")
    assert {path.name for path in first.path.iterdir()} >= {"run.json", "spool", "logs", "stacks", "reports", "findings"}
    assert [run.id for run in list_runs(root)] == [first.id, second.id]


def test_a_run_that_is_not_finished_is_not_there(root: Path) -> None:
    def half() -> None:
        with pytest.raises(ValueError, match="half way"), whole_run(model="half", root=root) as run:
            (run.path / "logs" / "some").write_text("half")
            raise ValueError("half way")

    half()
    assert not list_runs(root) and not (root / "latest").is_symlink()
    good = create_run(model="good", root=root)
    half()
    assert [one.id for one in list_runs(root)] == [good.id] and (root / "latest").resolve() == good.path.resolve()
    with whole_run(model="whole", root=root) as run:
        pass
    assert find_run("latest", root).id == run.id and run.info.state == "closed"


def test_what_a_diagnosis_makes_for_itself_is_not_the_latest_run(root: Path) -> None:
    with whole_run(model="first", root=root, latest=False) as alone:
        pass
    assert find_run("latest", root).id == alone.id  # there is nothing else that could be meant
    served = create_run(model="served", root=root)
    with whole_run(model="examined", root=root, latest=False):
        pass
    assert find_run("latest", root).id == served.id


def test_runs_live_where_the_environment_says(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", str(root))
    assert runs_root() == root
    run = create_run()
    assert run.path.parent == root.resolve()


def test_a_run_is_found_by_id_prefix_and_path(root: Path) -> None:
    run = create_run(model="alpha", root=root)
    assert find_run(run.id, root).path == run.path
    assert find_run(run.id[:-2], root).path == run.path
    assert find_run(str(run.path), root).path == run.path


def test_an_unknown_run_names_near_ones(root: Path) -> None:
    run = create_run(model="alpha", root=root)
    other = create_run(model="beta", root=root)
    with pytest.raises(UnknownRun) as wrong:
        find_run(run.id.replace("alpha", "alpah"), root)
    assert run.id in wrong.value.hint
    assert wrong.value.exit_code == 2
    with pytest.raises(UnknownRun) as ambiguous:
        find_run(run.id[:4], root)
    assert run.id in ambiguous.value.message and other.id in ambiguous.value.message


def test_without_any_run_the_hint_says_how_to_make_one(root: Path) -> None:
    with pytest.raises(UnknownRun) as empty:
        find_run("latest", root)
    assert "workbench" in empty.value.hint


def test_a_folder_that_is_no_run_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UnknownRun):
        find_run(str(tmp_path))
    (tmp_path / "run.json").write_text("[1, 2")
    with pytest.raises(UnknownRun):
        find_run(str(tmp_path))


UPDATE = """
import sys
from pathlib import Path
from traces.run import Run
run, name = Run(Path(sys.argv[1])), sys.argv[2]
for i in range(100):
    run.add_fingerprint(f"{name}-{i}", {"value": i})
"""


def test_processes_that_update_run_json_together_lose_nothing(run: Run) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", UPDATE, str(run.path), name]) for name in ("a", "b", "c")]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        info = Run(run.path).info  # a reader never meets a half-written file
        seen = max(seen, len(info.fingerprints))
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert set(run.info.fingerprints) == {f"{name}-{i}" for name in "abc" for i in range(100)}


def test_another_process_s_change_is_seen(run: Run) -> None:
    assert run.info.state == "running"
    Run(run.path).update(state="closed", endpoint={"url": "http://127.0.0.1:1"})
    assert run.info.state == "closed"
    assert run.info.endpoint == {"url": "http://127.0.0.1:1"}
    with pytest.raises(TypeError):
        run.update(colour="blue")


def test_a_read_only_folder_can_be_read_but_not_written(run: Run, frozen: Callable[[Path], None]) -> None:
    frozen(run.path)
    there = Run(run.path)
    assert there.info.id == run.id
    with pytest.raises(NotWritable) as refused:
        there.update(state="closed")
    assert refused.value.hint
    with pytest.raises(NotWritable):
        create_run(root=Path("/proc/nowhere"))


def test_a_run_of_a_newer_version_is_refused_with_a_remedy(run: Run) -> None:
    file = run.path / "run.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "schema_version": 99, "something_new": [1]}))
    with pytest.raises(SchemaTooNew) as newer:
        find_run(str(run.path))
    assert "upgrade" in newer.value.hint and "99" in newer.value.message
    assert list_runs(run.path.parent) == []


def test_fields_of_a_later_patch_are_ignored(run: Run) -> None:
    file = run.path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "later": True}))
    assert Run(run.path).info.id == run.id


def test_a_collector_that_is_gone_is_not_reported(run: Run) -> None:
    assert run.collector() is None
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    import socket

    told = {"host": "127.0.0.1", "port": 1, "pid": gone.pid, "token_file": "x", "machine": socket.gethostname()}
    (run.path / "collector.json").write_text(json.dumps(told))
    assert run.collector() is None
    (run.path / "collector.json").write_text(json.dumps({**told, "pid": os.getpid()}))
    address = run.collector()
    assert address is not None and address.url == "http://127.0.0.1:1" and address.token == ""
