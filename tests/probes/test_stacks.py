import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from probes import ptrace, stacks
from traces import schema

CHILD = textwrap.dedent("""
    import sys, threading
    def innermost_wait():
        print("ready", flush=True)
        sys.stdin.read()
    def outer_step():
        innermost_wait()
    def helper_loop():
        threading.Event().wait()
    threading.Thread(target=helper_loop, name="helper", daemon=True).start()
    outer_step()
""")


@pytest.fixture
def child(tmp_path):
    script = tmp_path / "victim.py"
    script.write_text(CHILD)
    with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.send_signal(signal.SIGCONT)
        process.kill()


def names(sample: stacks.StackSample) -> list[str]:
    return [frame.split(" (")[0] for frame in sample.frames]


@pytest.mark.parametrize("nonblocking", [None, True])
def test_functions_of_every_thread_appear_outermost_first(child, nonblocking):
    by_thread = {sample.thread: sample for sample in stacks.sample_stacks(child.pid, nonblocking=nonblocking)}
    main = next(sample for name, sample in by_thread.items() if name == "MainThread")
    assert names(main) == ["<module>", "outer_step", "innermost_wait"]
    assert main.frames[1] == "outer_step (victim.py:7)"
    assert main.thread_id == child.pid
    assert "helper_loop" in names(by_thread["helper"])


def test_a_stopped_process_can_still_be_read(child):
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert stacks.process_state(child.pid) == "T"
    found = [name for sample in stacks.sample_stacks(child.pid) for name in names(sample)]
    assert "innermost_wait" in found


def test_rows_are_written_for_every_thread(child, rows):
    stacks.record_stacks(rows, child.pid, rank=5)
    found = {row["thread"]: row for row in rows.of(schema.STACK)}
    assert {"MainThread", "helper"} <= set(found)
    assert found["MainThread"]["rank"] == 5


def test_a_process_that_is_gone_says_so():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(stacks.ProcessGone, match=str(process.pid)):
        stacks.sample_stacks(process.pid)


def test_a_process_that_is_no_python_says_so():
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with pytest.raises(stacks.StackError, match="not a Python process"):
                stacks.sample_stacks(process.pid)
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_the_right_it_names_the_setting_and_the_container_flag(child):
    code = (
        f"import os, sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); from probes.stacks import sample_stacks;"
        f"os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534); sample_stacks({child.pid})"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode != 0
    for words in ("NotPermitted", "ptrace_scope", "CAP_SYS_PTRACE not held", "--cap-add SYS_PTRACE", "securityContext"):
        assert words in answer.stderr


@pytest.mark.parametrize(
    ("scope", "capable", "allowed"),
    [(None, False, True), (0, False, True), (1, False, False), (1, True, True), (2, True, True), (3, True, False)],
)
def test_rights_as_the_yama_document_states_them(scope, capable, allowed):
    rights = ptrace.PtraceRights(scope, capable, root=False)
    assert rights.unrelated is allowed
    assert rights.remedy()
