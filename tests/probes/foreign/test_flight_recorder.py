"""Flight-recorder dumps: NVIDIA's labelled ones, torch's own of a real hang, and files made to do harm."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from probes.foreign import importing
from probes.foreign.flight_recorder import read_dump
from probes.foreign.restricted_pickle import UnsafePickle, plain
from traces import schema
from traces.errors import UsageError

SAMPLES = Path(os.environ.get("WORKBENCH_SAMPLES", Path(__file__).parents[4] / "shared" / "samples")) / "flight_recorder"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"the sample files are not here: {SAMPLES.name}")


@needs_samples
def test_the_pickles_of_sixteen_ranks_agree_with_pickle_itself():
    rows, files = importing.read([SAMPLES / "lock_gil_1st"])
    assert [file.path.name for file in files if not file.kind] == ["fault_injection.log"]
    for rank in range(16):
        with (SAMPLES / "lock_gil_1st" / f"_dump_{rank}").open("rb") as file:
            theirs = pickle.load(file)
        ours = [row for row in rows[schema.FLIGHT] if row[1] == rank]
        assert len(ours) == len(theirs["entries"])
        assert [row[0] for row in ours] == [entry["time_created_ns"] for entry in theirs["entries"]]
        groups = {row[1] for row in rows[schema.FLIGHT_GROUP] if row[0] == rank}
        assert groups >= {config["name"] for config in theirs["pg_config"].values()}
    # Rank 9 has no entries left: what it had entered is known only through the number its peers give to the group.
    (found,) = [row for row in rows[schema.FLIGHT_GROUP] if row[0] == 9 and row[2] == "EXPERT_MODEL_PARALLEL_GROUP"]
    assert found[4:6] == (45264, 45264)


@needs_samples
def test_json_of_gloo_and_a_pickle_of_the_same_read_alike(tmp_path):
    source = SAMPLES / "gloo_2rank" / "_dump_fr_trace_json_rank1.json"
    other = tmp_path / "nccl_trace_rank_1"
    other.write_bytes(pickle.dumps(json.loads(source.read_text())))
    ours, theirs = read_dump(source), read_dump(other)
    assert ours.entries == theirs.entries and ours.groups == theirs.groups and len(ours.entries) == 12
    assert [entry.open for entry in ours.entries] == [False] * 11 + [True]


class Harm:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    file, mark = tmp_path / "nccl_trace_rank_0", tmp_path / "harmed"
    harmful = pickle.dumps({"version": "2.9", "entries": [], "pg_config": Harm(mark)})
    pickle.loads(harmful)
    assert mark.exists(), "the file would really do harm"
    mark.unlink()
    file.write_bytes(harmful)
    with pytest.raises(UnsafePickle, match=r"nccl_trace_rank_0.*system"):
        importing.read([file])
    assert not mark.exists()


@pytest.mark.parametrize("cut", [1, 10, 50, 120])
def test_a_truncated_dump_is_named(tmp_path, cut):
    whole = pickle.dumps({"version": "2.9", "entries": [], "pg_config": {"0": {"name": "0", "desc": "d", "ranks": "[0, 1]"}}})
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(whole[: max(len(whole) - cut, 40)])
    with pytest.raises(UsageError, match="nccl_trace_rank_0"):
        read_dump(file)


ENTRY = {
    "profiling_name": "nccl:all_reduce", "process_group": ["0", "d"], "pg_id": 0, "time_created_ns": 1, "collective_seq_id": 1,
    "p2p_seq_id": 0, "state": "scheduled", "retired": False, "is_p2p": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"version": "2.9"}, "entries"),
        ({"version": "9.1", "entries": []}, "9.1"),
        ({"version": "2.9", "entries": [{"profiling_name": "nccl:all_reduce"}]}, "dump_rank_0"),
        ({"version": "2.9", "entries": {}}, "entries"),
        ({"version": "2.9", "entries": [{**ENTRY, "collective_seq_id": 1 << 70}]}, "number"),
        ([], "entries"),
    ],
)
def test_what_is_no_dump_is_named(tmp_path, document, word):
    file = tmp_path / "dump_rank_0.json"
    file.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=word):
        read_dump(file)


def test_two_dumps_of_one_rank_are_refused(tmp_path):
    for name in ("a_0", "b_0"):
        (tmp_path / name).write_text(json.dumps({"version": "2.9", "entries": [], "pg_config": {}}))
    with pytest.raises(UsageError, match="both of rank 0"):
        importing.read([tmp_path])


def test_files_of_no_known_form(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UsageError, match=r"notes.txt.*no form"):
        importing.read([tmp_path / "notes.txt"])
    with pytest.raises(UsageError, match="nothing"):
        importing.read([tmp_path])
    with pytest.raises(UsageError, match="no file"):
        importing.read([tmp_path / "absent"])


def test_a_pickle_of_plain_values_is_read():
    value = {"a": [1, 2.5, None, True, ("x", b"y")]}
    assert plain(pickle.dumps(value)) == value
