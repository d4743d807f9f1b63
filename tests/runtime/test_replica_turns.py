"""Which replica a row goes to: every replica gets its even share, near ones are preferred, nothing depends on chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.placement import Placement
from runtime.replica_turns import PERIOD, shares, turns

HOMES = st.sampled_from([(4, 1), (4, 2), (8, 2), (8, 4), (6, 3)]).flatmap(
    lambda shape: st.tuples(st.just(shape), st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=6))
)


@settings(max_examples=100, deadline=None)
@given(HOMES)
def test_every_replica_gets_its_even_share(case: tuple[tuple[int, int], list[int]]) -> None:
    (ranks, hosts), homes = case
    flow = shares(np.array(sorted(homes)), ranks, hosts)
    assert flow.sum(axis=0) == pytest.approx(np.full(len(homes), 1 / len(homes)))
    assert flow.sum(axis=1) == pytest.approx(np.full(ranks, 1 / ranks))


@settings(max_examples=100, deadline=None)
@given(HOMES)
def test_as_much_stays_near_as_even_shares_allow(case: tuple[tuple[int, int], list[int]]) -> None:
    (ranks, hosts), homes = case
    where = np.array(sorted(homes))
    flow = shares(where, ranks, hosts)
    for rank in range(ranks):
        local = flow[rank, where == rank].sum()
        assert local == pytest.approx(min(1 / ranks, np.count_nonzero(where == rank) / len(where)))
    host = np.arange(ranks) * hosts // ranks
    for number in range(hosts):
        stays = flow[np.ix_(host == number, host[where] == number)].sum()
        assert stays == pytest.approx(min(1 / hosts, np.count_nonzero(host[where] == number) / len(where)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=4, max_size=4), st.sampled_from([1, 2]), st.randoms())
def test_turns_name_slots_of_their_expert_as_often_as_their_share(extra: list[int], hosts: int, random: object) -> None:
    slots = [*range(8), *extra]
    random.shuffle(slots)  # type: ignore[attr-defined]
    tables = [turns(tuple(slots), 8, rank, 4, hosts) for rank in range(4)]
    for expert in range(8):
        homes = [slot for slot, held in enumerate(slots) if held == expert]
        dealt = sum(np.bincount(table[expert], minlength=12) for table in tables)
        assert set(np.flatnonzero(dealt)) == set(homes)
        assert np.abs(dealt[homes] - 4 * PERIOD / len(homes)).max() <= 4  # one turn a rank is lost in rounding


def test_a_rank_uses_its_own_replica() -> None:
    slots = (0, 1, 2, 0, 3, 0)  # ranks of two slots: expert 0 stands on all three
    assert [set(turns(slots, 4, rank, 3, 1)[0].tolist()) for rank in range(3)] == [{0}, {3}, {5}]


def test_a_rank_without_one_takes_the_replica_of_its_host() -> None:
    slots = (0, 1, 2, 3, 0, 4, 5, 6)  # four ranks on two hosts, expert 0 on ranks 0 and 2
    assert [set(turns(slots, 7, rank, 4, 2)[0].tolist()) for rank in range(4)] == [{0}, {0}, {4}, {4}]
    assert [set(turns(slots, 7, rank, 4, 1)[0].tolist()) for rank in range(4)] == [{0}, {0, 4}, {4}, {0, 4}]


def test_the_slot_map_deals_by_the_row_of_the_token() -> None:
    torch = pytest.importorskip("torch")
    from runtime.layers.slot_map import SlotMap

    placement = Placement(0, ((0, 1, 2, 3, 0, 4, 5, 6),), 4)
    chosen = torch.tensor([[0, 3], [2, 0], [0, 6], [0, 1]])  # [T, k]
    for rank in range(4):
        slots = SlotMap(placement, 0, 7, rank, torch.device("cpu"))(chosen)
        assert [placement.physical_to_logical[0][slot] for slot in slots] == chosen.flatten().tolist()
    dealt = [SlotMap(placement, 0, 7, rank, torch.device("cpu"))(chosen).view(4, 2) for rank in (1, 3)]
    assert [row.tolist() for row in (dealt[0][[0, 2, 3], 0], dealt[1][[0, 2, 3], 0])] in ([[4, 4, 0], [4, 4, 0]], [[0, 0, 4], [0, 0, 4]])
