"""What all ranks must agree on: headers over real gloo ranks, changes at one step, detail windows, rollups."""

from __future__ import annotations

import socket
from collections.abc import Callable

from runtime import messages as m
from runtime.changes import Change, Changes, Detail
from runtime.link import ApiGone, Link
from runtime.rollup import BUCKETS, Rollup, bucket

PROGRAM = """
import sys
import torch.distributed as dist
from runtime.header import Header
from runtime.parallel import Group
dist.init_process_group("gloo")
rank = dist.get_rank()
header = Header(Group("world", rank, 3, dist.group.WORLD), 2)
first = header.exchange(10 * rank, rank > 0, rank + 4, 7, [rank, 2 * rank])
second = header.exchange(0, True, 9, 7, [])
print(first.tokens, first.stop, first.changes, first.pending, first.rows, first.seq, second.stop, second.pending, second.rows)
"""


def test_every_rank_reads_the_same_header(gloo_ranks: Callable[[str, int], list[str]]) -> None:
    told = gloo_ranks(PROGRAM, 3)
    assert set(told) == {"[0, 10, 20] False 4 True [[0, 0], [1, 2], [2, 4]] 1 True False [[0, 0], [0, 0], [0, 0]]"}


def test_changes_wait_until_all_have_read_them_and_keep_their_order() -> None:
    applied: list[tuple[int, int]] = []

    def apply(change: Change, step: int) -> None:
        applied.append((change.version, step))

    changes = Changes(apply)
    for version in (1, 2, 3):
        changes.stage(m.Setting(version, 0))
    changes.agreed(0, 10)
    changes.agreed(2, 11)
    changes.agreed(2, 12)
    changes.agreed(3, 13)
    assert (changes.read, applied) == (3, [(1, 11), (2, 11), (3, 13)])


def test_detail_is_one_in_n_and_windows() -> None:
    detail = Detail(4)
    detail.open_window(5, 2)
    detail.open_window(6, 1)
    assert [step for step in range(1, 13) if detail.wanted(step)] == [4, 5, 6, 8, 12]
    assert not any(Detail(0).wanted(step) for step in range(100))


def test_rollup_buckets_are_four_an_octave() -> None:
    for ns, expected in [(0, 0), (999, 0), (1_000, 0), (1_190, 1), (2_000, 4), (4_000, 8), (1_000_000_000, 79), (10**14, BUCKETS - 1)]:
        assert bucket(ns) == expected, ns
        if 1_000 < ns < 10**14:
            assert 2 ** (expected / 4) <= ns / 1000 * (1 + 1e-9) and ns / 1000 < 2 ** ((expected + 1) / 4)
    rollup = Rollup(3)
    rollup.add(1, (1_000, 2_000, 0, 0, 0, 0))
    rollup.add(1, (3_000, 2_000, 0, 0, 0, 0))
    rows = {row[3]: row for row in rollup.flush()}
    assert rows["attention"][4:8] == (2, 4_000, 1_000, 3_000)
    assert rows["router"][8] == [0, 0, 0, 0, 2]
    assert rollup.flush() == []


def test_frames_come_whole_however_they_are_cut() -> None:
    here, there = socket.socketpair()
    link = Link(_Plain(there))
    sent = [m.Wake(1), m.Cancel(7), m.Setting(1, 2, detail_every=3), m.Stop(9)]
    data = b"".join(m.frame(message) for message in sent)
    got = []
    for index in range(0, len(data), 3):
        here.sendall(data[index : index + 3])
        got += link.poll()
    assert got == sent
    here.close()
    try:
        link.poll()
    except ApiGone:
        return
    raise AssertionError("the end of the connection went unnoticed")


class _Plain(socket.socket):
    """A local socket, which has no TCP options."""

    def __init__(self, other: socket.socket) -> None:
        super().__init__(fileno=other.detach())

    def setsockopt(self, *args: object) -> None:  # type: ignore[override]
        return None
