"""The stacks and states of ranks at one moment: who stands in host code while most wait, who is stopped, and when that says nothing."""

from __future__ import annotations

import json

from playbooks.hang import processes
from playbooks.hang.processes import Process
from playbooks.runner import diagnose
from traces import schema
from traces.run import create_run
from traces.store import write_rows

NOW = 1_000_000_000_000
SECOND = 1_000_000_000
INSIDE, OUTSIDE = "all_reduce (torch/distributed/distributed_c10d.py:2810)", "load (my_data_parallel.py:12)"


def check(root, frames, seqs=(), ended=NOW):
    """hang.host-code of ranks that stand at `frames`; `seqs`: the last collective of each, which ended at `ended`."""
    run = create_run(engine="job", model="stacks", root=root, world_size=len(frames))
    state = json.dumps({"pid": 1, "state": "sleeping", "kernel": "", "why": ""})
    write_rows(run, schema.EVENT, [(NOW, 0, f"rank{n}", n, "process", state) for n in range(len(frames))], producer="processes")
    stacks = [(NOW, f"rank{n}", n, "main", ["main (job.py:1)", frame]) for n, frame in enumerate(frames)]
    write_rows(run, schema.STACK, stacks, producer="stacks")
    rows = [(1, n, "ep", seq, 0, "dispatch", ended - 1, ended, [], [], "host") for n, seq in enumerate(seqs)]
    write_rows(run, schema.COLLECTIVE, rows, producer="ranks")
    found = diagnose(run, "hang")
    (made,) = [one for one in found.checks if one.id == "hang.host-code"]
    return made, [one for one in found.findings if one.id == "hang.host-code"]


def test_the_rank_that_stands_elsewhere_is_named_with_its_line(tmp_path):
    made, (found,) = check(tmp_path, [INSIDE, OUTSIDE, INSIDE], (9, 7, 9), NOW - 60 * SECOND)
    assert (made.outcome, found.confidence.basis, found.subject.labels["ranks"]) == ("fail", "supported", [1])
    assert "my_data_parallel.py:12" in found.summary and "2 collectives behind" in found.summary


def test_ranks_that_differ_by_some_while_collectives_end_are_only_a_hypothesis(tmp_path):
    made, (found,) = check(tmp_path, [INSIDE, OUTSIDE, INSIDE], (9, 7, 9), NOW - SECOND)
    assert (made.outcome, found.confidence.basis) == ("warn", "hypothesis")


def test_a_moment_in_which_few_wait_says_nothing(tmp_path):
    for frames in ([INSIDE, OUTSIDE], [OUTSIDE] * 4):
        made, found = check(tmp_path, frames)
        assert made.outcome == "skipped" and "most ranks wait" in made.summary and not found


def test_where_all_wait_nobody_stands_in_host_code(tmp_path):
    made, found = check(tmp_path, [INSIDE] * 3, (9, 9, 9), NOW - 60 * SECOND)
    assert made.outcome == "pass" and not found


def test_a_stopped_process_of_a_live_run_is_found_with_what_was_seen_of_it(tmp_path, monkeypatch):
    """Nothing of it was recorded: the kernel is asked when the diagnosis is made."""
    seen = [Process(0, "stopped", "", ("wait (job.py:3)",), NOW), Process(1, "sleeping", "", (), NOW)]
    monkeypatch.setattr(processes, "_now", lambda case: seen)
    (found,) = diagnose(create_run(engine="job", model="stopped", root=tmp_path, world_size=2), "hang").findings
    assert (found.id, found.subject.labels["ranks"]) == ("hang.stopped-rank", [0])
    assert [(one.observed, one.note) for one in found.evidence] == [("stopped", "wait (job.py:3)")]
