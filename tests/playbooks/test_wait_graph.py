"""Properties of the wait graph: in every hang made of one faulty rank, that rank is named and nobody else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from playbooks.attribution import wait_graph
from playbooks.attribution.wait_graph import Membership, Op


@given(st.integers(2, 6), st.data())
def test_one_rank_that_stops_entering_is_the_only_one_named(world, data):
    """Lock-step programs over random sub-groups; rank `faulty` stops at a random call; who waits for whom follows by execution."""
    groups = data.draw(st.lists(st.sets(st.integers(0, world - 1), min_size=2), min_size=1, max_size=4, unique_by=frozenset))
    program = data.draw(st.lists(st.integers(0, len(groups) - 1), min_size=1, max_size=12))
    faulty = data.draw(st.integers(0, world - 1))
    own = [call for call, group in enumerate(program) if faulty in groups[group]]
    if not own:
        return
    stop = data.draw(st.sampled_from(own))
    ops = executed(world, groups, program, faulty, stop)
    members = [Membership(str(number), "", tuple(sorted(ranks))) for number, ranks in enumerate(groups)]
    for rank in range(world):
        for group in members:
            mine = [op for op in ops if op.rank == rank and op.group == group.name]
            if rank in group.ranks:
                group.enqueued[rank] = max([op.seq for op in mine], default=0)
                group.completed[rank] = max([op.seq for op in mine if not op.open], default=0)
    # A ring forgets what has completed; the numbers stay.
    remembered = [op for op in ops if op.open or data.draw(st.booleans())]
    graph = wait_graph.of(range(world), remembered, members)
    assert set(graph.missing) == {faulty}
    assert not graph.stuck and not graph.mismatches and not graph.silent and not graph.ring


def test_two_groups_entered_in_different_orders_are_a_ring():
    both = [Membership("a", "", (0, 1)), Membership("b", "", (0, 1))]
    for group in both:
        group.enqueued.update({0: 0, 1: 0})
        group.completed.update({0: 0, 1: 0})
    both[0].enqueued[0] = both[1].enqueued[1] = 1
    graph = wait_graph.of((0, 1), [Op(0, "a", 1, "all_reduce", True), Op(1, "b", 1, "all_reduce", True)], both)
    assert {wait.rank for wait in graph.ring} == {0, 1} and not graph.missing and not graph.stuck


def executed(world, groups, program, faulty, stop):
    """Every rank enters its calls in order and blocks in one until all members have entered it."""
    entered = dict.fromkeys(range(world), 0)
    calls = {rank: [i for i, group in enumerate(program) if rank in groups[group]] for rank in range(world)}
    inside: dict[int, set[int]] = {i: set() for i in range(len(program))}
    moving = True
    while moving:
        moving = False
        for rank in range(world):
            if entered[rank] == len(calls[rank]):
                continue
            call = calls[rank][entered[rank]]
            if rank == faulty and call == stop:
                continue
            if rank not in inside[call]:
                inside[call].add(rank)
                moving = True
            if inside[call] == set(groups[program[call]]):
                entered[rank] += 1
                moving = True
    ops = []
    for rank in range(world):
        counts = dict.fromkeys(range(len(groups)), 0)
        for call in calls[rank]:
            group = program[call]
            counts[group] += 1
            if rank in inside[call]:
                ops.append(Op(rank, str(group), counts[group], "all_reduce", inside[call] != set(groups[group])))
    return ops


def test_one_late_note_of_an_end_is_no_hang():
    both = [Membership("a", "", (0, 1), {0: 2, 1: 2}, {0: 1, 1: 2})]
    graph = wait_graph.of((0, 1), [Op(0, "a", 2, "all_reduce", True), Op(1, "a", 2, "all_reduce", False)], both)
    assert set(graph.stuck) == {0} and not graph.waits and not graph.missing
