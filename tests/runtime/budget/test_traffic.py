"""Bytes between ranks, pipeline bubbles, time floors, and the ranking of layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runtime.budget.floors import crossover, floors
from runtime.budget.layout import Layout
from runtime.budget.search import search
from runtime.budget.traffic import bubble, traffic
from runtime.budget.weights import Costs
from runtime.budget.workload import Cluster, Workload
from runtime.inventory.families import inventory_of
from runtime.inventory.model import Inventory

GIB = 1 << 30
CLUSTER = Cluster(8, 8, 141 * GIB, 2 * GIB, intra=900e9, inter=50e9, hbm=4.8e12)
WORK = Workload(context=131072, concurrency=64)


@pytest.fixture(scope="module")
def k3(published: Callable[[str], dict[str, Any]]) -> Inventory:
    return inventory_of(published("kimi_k3"))


def test_the_latent_halves_the_dispatch(k3: Inventory) -> None:
    """16 rows of 3584 values: 112 KiB a token and layer, where rows of the hidden width would be 224 KiB."""
    found = traffic(k3, Layout(dp=64), CLUSTER)
    assert found is not None and found.dispatch == 112 << 10
    assert found.remote == found.dispatch * 63 // 64
    assert found.inter == found.dispatch * 56 // 64 and found.hosts == 8


def test_one_host_sends_nothing_out(k3: Inventory) -> None:
    found = traffic(k3, Layout(dp=8), Cluster(1, 8))
    assert found is not None and (found.inter, found.inter_once, found.hosts) == (0, 0, 1)


def test_rows_sent_once_a_host_by_simulation(k3: Inventory) -> None:
    """The expected number of other hosts that 16 random experts touch, against draws."""
    import random

    draw = random.Random(5)
    touched = [len({draw.randrange(8) for _ in range(16)} - {0}) for _ in range(20_000)]
    found = traffic(k3, Layout(dp=64), CLUSTER)
    assert found is not None
    assert found.inter_once == pytest.approx(sum(touched) / len(touched) * 3584 * 2, rel=0.01)


def test_bubble_of_a_published_example() -> None:
    """GPipe: 4 stages and 4 micro-batches wait 3/7 of the time, 32 micro-batches 3/35."""
    assert bubble(4, 4) == pytest.approx(3 / 7)
    assert bubble(4, 32) == pytest.approx(3 / 35)
    assert bubble(1, 1) == 0


def test_a_step_cannot_be_faster_than_its_reads(k3: Inventory) -> None:
    """One sequence on one device reads what a token activates (4.25 bits an expert value, 16 bits the rest) and its caches."""
    alone = floors(Costs(k3), Layout(), Cluster(hbm=1e12), Workload(context=1, concurrency=1))
    routed = 2_722_740_830_208 * 16 // 896
    kinds = k3.kinds()
    rest = sum(size for kind, size in kinds.items() if kind not in ("routed", "embed", "vision", "projector"))
    expected = rest + routed * 17 / 32 + 27_648 + (414 << 20) + 69 * 3 * 12_288 * 3 * 2
    assert alone.memory == pytest.approx(expected / 1e12, rel=1e-6)
    assert alone.communication == 0 and alone.compute is None and alone.decode == alone.memory


def test_missing_bandwidths_are_not_guessed(k3: Inventory) -> None:
    found = floors(Costs(k3), Layout(dp=64), Cluster(8, 8), WORK)
    assert (found.memory, found.compute, found.communication, found.decode, found.load) == (None,) * 5
    with pytest.raises(ValueError, match="bandwidths"):
        crossover(Costs(k3), Cluster(8, 8), WORK, [8, 16])


def test_communication_exceeds_work_where_the_floors_say_so(k3: Inventory) -> None:
    """On a slow network it does at some size; at the size before, it does not; on an infinite one it never does."""
    costs, slow, sizes = Costs(k3), replace(CLUSTER, inter=0.2e9), [8, 16, 32, 64, 128]
    at = crossover(costs, slow, WORK, sizes)
    assert at is not None and at > 8
    for devices, exceeds in ((at, True), (sizes[sizes.index(at) - 1], False)):
        found = floors(costs, Layout(dp=devices), replace(slow, nodes=devices // 8), WORK)
        assert found.work is not None and found.communication is not None
        assert (found.communication > found.work) is exceeds
    assert crossover(costs, replace(CLUSTER, inter=1e18, intra=1e18), WORK, sizes) is None


def test_search_ranks_and_says_why(k3: Inventory) -> None:
    found = search(Costs(k3), CLUSTER, WORK)
    assert len(found) == len({one.layout for one in found}) == 28
    assert found[0].fits and not found[0].reason and all(one.reason for one in found[1:])
    times = [one.ranked.decode for one in found if one.fits and one.ranked and one.traffic and not one.traffic.all_reduce_leaves_host]
    assert times == sorted(times, key=lambda seconds: seconds or 0)
    reasons = {str(one.layout): one.reason for one in found}
    assert "96 attention heads cannot be split over 64 ranks" in reasons["tp64 pp1 dp1 ep64"]
    assert reasons["tp1 pp1 dp64 ep64"].startswith("does not fit: rank 0 needs")
    assert "leave the host" in reasons["tp16 pp1 dp4 ep64"]


def test_experts_that_do_not_divide_are_filled_with_replicas(k3: Inventory) -> None:
    """896 experts on 6 ranks: 4 replicas make 900."""
    best = search(Costs(k3), Cluster(1, 6, 1000 * GIB), Workload(concurrency=6))
    assert next(one for one in best if one.layout.dp == 6).layout.redundant == 4
