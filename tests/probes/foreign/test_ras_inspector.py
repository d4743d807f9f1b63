"""NCCL's RAS answers and inspector measurements, on the samples of NVIDIA's own documentation, and damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from playbooks.runner import diagnose
from probes.foreign import importing
from traces import schema
from traces.errors import UsageError
from traces.run import create_run
from traces.store import write_rows

SAMPLES = Path(os.environ.get("WORKBENCH_SAMPLES", Path(__file__).parents[4] / "shared" / "samples")) / "nccl"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"the sample files are not here: {SAMPLES.name}")


def status(*ranks, missing=()):
    """An answer about one communicator. ranks: counts of AllReduce by rank."""
    return {
        "nccl_version": "2.29.1", "timestamp": "2026-11-30 10:00:00", "communicators_count": 1,
        "communicators": [
            {
                "hash": "0x1", "size": len(ranks) + len(missing),
                "ranks": [
                    {"rank": n, "host": f"h{n}", "pid": 1, "status": {"async_error": 0}, "collective_counts": {"AllReduce": count}}
                    for n, count in enumerate(ranks)
                ],
                "missing_ranks": [
                    {"rank": n, "host": f"h{n}", "pid": 1, "status": {"unresponsive": True, "considered_dead": True}} for n in missing
                ],
            }
        ],
    }  # fmt: skip


def judged(path, root):
    run = create_run(engine="imported", model="ras", root=root)
    for table, values in importing.read([path])[0].items():
        write_rows(run, table, values, producer="import")
    return diagnose(run, "hang")


@needs_samples
def test_the_documented_answer_names_its_missing_rank(tmp_path):
    first = judged(SAMPLES / "ras_status.json", tmp_path).findings[0]
    assert first.id == "hang.unanswering-rank" and first.subject.labels == {"ranks": [1], "hosts": ["172.16.64.245"]}


@pytest.mark.parametrize(
    ("answer", "ranks", "severity"),
    [
        (status(7, 7, 7, missing=(3,)), [3], "critical"),
        (status(7, 7, 6, 7), [2], "warning"),
        (status(7, 7, 7, 7), None, None),
        (status(7, 6), None, None),  # nobody is in the majority
    ],
)
def test_who_does_not_answer_or_is_behind(tmp_path, answer, ranks, severity):
    path = tmp_path / "ras.json"
    path.write_text(json.dumps(answer))
    found = judged(path, tmp_path).findings
    assert [(one.subject.labels["ranks"], one.severity) for one in found] == ([(ranks, severity)] if ranks else [])


def check(path, root):
    return next(one for one in judged(path, root).checks if one.id == "hang.unanswering-rank")


def test_ranks_that_differ_without_a_majority_rule_nothing_out(tmp_path):
    path = tmp_path / "ras.json"
    path.write_text(json.dumps(status(7, 6)))
    made = check(path, tmp_path)
    assert made.outcome == "skipped" and "rank 0 has called AllReduce 7 times; rank 1 has called AllReduce 6 times" in made.summary


@pytest.mark.parametrize(
    ("state", "severity"),
    [
        ({"unresponsive": True}, "critical"), ({"considered_dead": True}, "critical"),
        ({"async_error": 6}, "warning"), ({"abort_flag": True}, "warning"),
    ],
)  # fmt: skip
def test_what_ras_says_of_a_rank_is_read(tmp_path, state, severity):
    answer = status(7, 7, 7, 7)
    answer["communicators"][0]["ranks"][2]["status"] |= state
    path = tmp_path / "ras.json"
    path.write_text(json.dumps(answer))
    (found,) = judged(path, tmp_path).findings
    assert (found.subject.labels["ranks"], found.severity) == ([2], severity)


def test_only_the_newest_answer_counts(tmp_path):
    folder = tmp_path / "ras"
    folder.mkdir()
    (folder / "before.json").write_text(json.dumps(status(7, 7, 7, missing=(3,))))
    (folder / "after.json").write_text(json.dumps({**status(9, 9, 9, 9), "timestamp": "2026-11-30 10:05:00"}))
    assert check(folder, tmp_path).outcome == "pass"


@needs_samples
def test_measurements_of_the_inspector_in_both_forms():
    rows, (file,) = importing.read([SAMPLES / "inspector_sample.jsonl"])
    assert file.kind == "nccl-inspector" and file.rows == 4
    first = rows[schema.METRIC][0]
    # AllReduce of 16 GiB in 61,974 us on 8 ranks: 277.21 GB/s, times 2 (n - 1) / n on the bus.
    assert first[2] == "nccl.bus_bandwidth" and first[4] == pytest.approx(17179869184 / 0.061974 * 2 * 7 / 8, rel=1e-4)
    rows, _ = importing.read([SAMPLES / "inspector_prom_sample.txt"])
    assert {row[2] for row in rows[schema.METRIC]} == {"nccl.bus_bandwidth", "nccl.time", "nccl.p2p.bus_bandwidth", "nccl.p2p.time"}
    assert rows[schema.METRIC][0][4] == pytest.approx(678.263e9)


def line(**changed):
    """A measurement of the inspector; `changed` by name, wherever it stands."""
    told = {
        "header": {"id": "0x1", "rank": 0, "n_ranks": 2, "nnodes": 1},
        "metadata": {"dump_timestamp_us": 1_000_000, "hostname": "a"},
        "coll_perf": {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 8, "coll_busbw_gbs": 1.0, "coll_exec_time_us": 5},
    }
    return json.dumps({part: {name: changed.get(name, value) for name, value in facts.items()} for part, facts in told.items()})


@pytest.mark.parametrize(
    "bad",
    [
        line(dump_timestamp_us=float("inf")), line(dump_timestamp_us=1e30), line(dump_timestamp_us=-1), line(rank=99_999_999_999_999),
        line(coll_busbw_gbs=float("nan")), line(coll_exec_time_us="x"), line()[:40],
        'nccl_bus_bandwidth_gbs{nranks="x"} 1.5', 'nccl_bus_bandwidth_gbs{nranks="2"} 1.2.3', 'nccl_bus_bandwidth_gbs{nranks="2"} 1e999',
    ],
)  # fmt: skip
def test_a_damaged_line_is_left_out_and_said(tmp_path, bad):
    path = tmp_path / "inspector.log"
    path.write_text(f"{line()}\n{bad}\n{line()}\n")
    rows, (file,) = importing.read([path])
    assert file.rows == 4 and file.warnings == ["1 damaged line left out"]
    write_rows(create_run(engine="imported", model="inspector", root=tmp_path), schema.METRIC, rows[schema.METRIC], producer="import")


@pytest.mark.parametrize(("old", "new"), [('"rank": 0', '"rank": 99999999999999'), ('"rank": 0', '"rank": Infinity'), ("2026", "1926")])
def test_an_answer_with_a_number_that_cannot_be_is_named(tmp_path, old, new):
    path = tmp_path / "ras.json"
    path.write_text(json.dumps(status(7, 7)).replace(old, new))
    with pytest.raises(UsageError, match=r"ras\.json"):
        importing.read([path])


@pytest.mark.parametrize(
    "text", ['{"nccl_version": "2.29", "communicators": [{"hash"', '{"nccl_version": 1, "communicators": [1]}', '{"coll_perf"']
)
def test_a_damaged_file_is_named(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"broken\.json"):
        importing.read([path])
