"""Expert parallelism keeps its books: every row arrives, every byte sent is received, every count adds up."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

FAMILIES = pytest.mark.parametrize("tiny", ["qwen3_moe", "qwen3_vl_moe"], indirect=True)
WORLDS = pytest.mark.parametrize("world", [1, 2, 4])
TOP_K, EXPERTS, HIDDEN = 2, 8, 64
MOE_LAYERS = {"qwen3_moe": 2, "qwen3_vl_moe": 3}


@FAMILIES
@WORLDS
def test_rows_computed_are_the_assignments_made(tiny, ranks, world):
    """In every step and MoE layer: rows over ranks = tokens over ranks x top-k."""
    outs = ranks(tiny, world)
    for step in range(len(outs[0]["steps"]["tokens"])):
        tokens = sum(out["steps"]["tokens"][step] for out in outs)
        per_layer = zip(*(out["steps"]["rows"][step] for out in outs), strict=True)
        assert all(sum(rows) == tokens * TOP_K for rows in per_layer)


@FAMILIES
@WORLDS
def test_window_counts_add_up(tiny, ranks, world):
    outs = ranks(tiny, world)
    for windows in zip(*(out["windows"] for out in outs), strict=True):
        assert sum(sum(w.physical) for w in windows) == sum(w.tokens_in for w in windows) * TOP_K
        for window, out in zip(windows, outs, strict=True):
            assert sum(window.tokens) == window.tokens_in * TOP_K
            assert len(window.tokens) == EXPERTS and len(window.physical) == EXPERTS // world
            assert window.tokens_in == sum(out["steps"]["tokens"][: window.step_last])
            assert (window.dropped, window.padding) == (0, 0)
        # Under the contiguous placement slot e holds expert e: what all ranks sent to an expert is what its slot computed.
        sent = [sum(column) for column in zip(*(w.tokens for w in windows), strict=True)]
        assert sent == [rows for window in windows for rows in window.physical]


@FAMILIES
@WORLDS
def test_bytes_sent_are_bytes_received(tiny, ranks, world):
    """Collectives join on (group, seq); what i sent to j is what j received from i."""
    collectives = defaultdict(dict)
    for rank, out in enumerate(ranks(tiny, world)):
        for row in out["tables"]["collective"]:
            assert row["enter"] <= row["exit"] and row["clock"] == "host"
            collectives[row["group"], row["seq"]][rank] = row
    assert collectives
    for rows in collectives.values():
        assert len(rows) == world and len({(r["op"], r["layer"], r["step"]) for r in rows.values()}) == 1
        for i in rows:
            assert [rows[j]["received"][i] for j in range(world)] == rows[i]["sent"]


@FAMILIES
@WORLDS
def test_dispatch_bytes_are_rows_of_hidden_width(tiny, ranks, world):
    for out in ranks(tiny, world):
        computed = {(r["step"], r["layer"]): r["tokens_routed"] for r in out["tables"]["layer"]}
        for row in out["tables"]["collective"]:
            if row["op"] == "dispatch":
                assert sum(row["received"]) == computed[row["step"], row["layer"]] * HIDDEN * 4
            if row["op"] == "exchange" and row["step"] == 1:  # under the first placement: int64 counts of as many slots as experts
                assert row["sent"] == row["received"] == [EXPERTS // world * 8] * world


@FAMILIES
@WORLDS
def test_segments_are_contiguous_and_ordered(tiny, ranks, world):
    """One row per layer and detailed step; a layer's segments end before the next layer starts."""
    for out in ranks(tiny, world):
        steps = defaultdict(list)
        for row in out["tables"]["layer"]:
            steps[row["step"]].append(row)
        assert len(steps) == len(out["steps"]["tokens"])
        for rows in steps.values():
            assert [row["layer"] for row in rows] == [0, 1, 2]
            for row in rows:
                segments = [row[name] for name in ("attention", "router", "exchange", "dispatch", "experts", "combine")]
                assert min(segments) >= 0
                row["end"] = row["ts"] + sum(segments)
            assert all(a["end"] <= b["ts"] for a, b in pairwise(rows))


def test_dense_layer_has_no_exchange(tiny_qwen3_moe, ranks):
    for out in ranks(tiny_qwen3_moe, 2):
        dense = [row for row in out["tables"]["layer"] if row["layer"] == 1]
        assert dense and all((row["router"], row["exchange"], row["dispatch"], row["tokens_routed"]) == (0, 0, 0, 0) for row in dense)
        assert all(row["layer"] != 1 for row in out["tables"]["collective"])


@FAMILIES
@WORLDS
def test_switched_placement_counts_by_slot(tiny, ranks, world):
    """After a switch the windows carry the new version, and redundant slots share their expert's rows."""
    outs = ranks(tiny, world)
    tokens = sum(len(p.tokens) for p in tiny.prompts)
    for turn, slots in enumerate((EXPERTS, EXPERTS + world, EXPERTS)):
        windows = [out["switched_windows"][turn] for out in outs]
        for layer in range(MOE_LAYERS[tiny.path.name.rstrip("0")]):
            assert {w[layer].placement for w in windows} == {turn + 1}
            assert sum(len(w[layer].physical) for w in windows) == slots
            assert sum(sum(w[layer].physical) for w in windows) == sum(sum(w[layer].tokens) for w in windows) == tokens * TOP_K


@FAMILIES
@WORLDS
def test_placement_rows_carry_the_same_hash_for_the_same_expert(tiny, ranks, world):
    """Rank 0 writes every version; the hash of an expert never changes, whatever slot holds it."""
    outs = ranks(tiny, world)
    rows = outs[0]["tables"]["placement"]
    assert {row["placement"] for row in rows} == {0, 1, 2, 3}
    assert all("placement" not in out["tables"] for out in outs[1:])
    hashes = defaultdict(set)
    for row in rows:
        for expert, digest in zip(row["physical_to_logical"], row["slot_hashes"], strict=True):
            hashes[row["layer"], expert].add(digest)
    assert {len(found) for found in hashes.values()} == {1}
    assert len({next(iter(found)) for found in hashes.values()}) == len(hashes)  # no two experts are alike


def test_hashes_do_not_depend_on_the_world(tiny_qwen3_moe, ranks):
    def initial(world):
        return [row["slot_hashes"] for row in ranks(tiny_qwen3_moe, world)[0]["tables"]["placement"] if row["placement"] == 0]

    assert initial(1) == initial(2) == initial(4)
