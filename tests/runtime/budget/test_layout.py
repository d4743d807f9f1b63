"""What ranks hold: shares add up to the model, whatever the layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from playbooks.drills.checkpoint import config_of
from runtime.budget.cache import kv_bytes, longest_context, state_bytes
from runtime.budget.layout import Layout, checked, every_layout, stages
from runtime.budget.precision import sizes_for
from runtime.budget.rank import fitting_context, rank_budgets
from runtime.budget.weights import Costs
from runtime.budget.workload import Cluster, Workload
from runtime.inventory.families import inventory_of
from runtime.inventory.model import Inventory
from traces.errors import UsageError

Published = Callable[[str], dict[str, Any]]
GIB = 1 << 30


@pytest.fixture(scope="module")
def k3(published: Published) -> Inventory:
    return inventory_of(published("kimi_k3"))


@pytest.fixture(scope="module")
def v3(published: Published) -> Inventory:
    return inventory_of(published("deepseek_v3"))


def _held(costs: Costs, layout: Layout, *kinds: str) -> int:
    """Bytes of some kinds over all ranks."""
    plan = stages(costs.inventory.layers, layout.pp)
    ranks = [costs.weights(layout, plan[layout.stage_of(rank)], rank % layout.tp) for rank in range(layout.world)]
    return sum(size for rank in ranks for kind, size in rank.items() if kind in kinds)


def test_one_rank_holds_everything(k3: Inventory) -> None:
    assert sum(Costs(k3).weights(Layout(), stages(k3.layers, 1)[0]).values()) == k3.stored_bytes


@pytest.mark.parametrize("layout", [Layout(dp=64), Layout(tp=8, dp=8), Layout(tp=4, pp=4, dp=4), Layout(pp=31)])
def test_experts_are_held_once(k3: Inventory, layout: Layout) -> None:
    """896 experts divide by all of these: the routed bytes of all ranks are those of the checkpoint."""
    assert _held(Costs(k3), layout, "routed") == k3.kinds()["routed"]


@pytest.mark.parametrize("layout", [Layout(pp=4), Layout(tp=2, pp=3), Layout(tp=8, dp=2)])
def test_what_tensor_parallelism_splits_is_held_once_a_replica(k3: Inventory, layout: Layout) -> None:
    held = _held(Costs(k3), layout, "dense", "embed", "head")
    assert held == layout.dp * sum(k3.kinds()[kind] for kind in ("dense", "embed", "head"))
    # Each lane routes tokens of its own and computes their shared expert itself: it is held by every lane.
    assert _held(Costs(k3), layout, "shared") == layout.dp * layout.tp * k3.kinds()["shared"]


def test_redundant_experts_cost_whole_experts(k3: Inventory) -> None:
    """64 replicas on 64 ranks: one more slot a rank and layer, of 16.73 MiB (3 matrices of 3072 x 3584 in 4.25 bits)."""
    plain, more = (Costs(k3).weights(Layout(dp=64, redundant=n), stages(93, 1)[0])["routed"] for n in (0, 64))
    assert more - plain == 92 * 3 * 3072 * 3584 * 17 // 32


def test_kv_of_a_latent_is_repeated_on_every_tensor_parallel_rank(k3: Inventory) -> None:
    stage = stages(k3.layers, 1)[0]
    assert kv_bytes(k3, Layout(), stage, 1 << 20, 2) == kv_bytes(k3, Layout(tp=8), stage, 1 << 20, 2) == 27 * GIB


def test_state_is_split_by_head(k3: Inventory) -> None:
    stage = stages(k3.layers, 1)[0]
    assert state_bytes(k3, Layout(), stage) == (414 << 20) + 69 * 3 * 12_288 * 3 * 2
    assert state_bytes(k3, Layout(tp=8), stage) * 8 == state_bytes(k3, Layout(), stage)


def test_a_million_tokens_are_planned_and_the_longest_context_fits_exactly(k3: Inventory) -> None:
    """At the longest context every rank fits; one token more and one does not."""
    layout, cluster = Layout(dp=64), Cluster(8, 8, 160 * GIB, 2 * GIB)
    workload = Workload(context=1 << 20, concurrency=64)
    longest = fitting_context(Costs(k3), layout, cluster, workload)
    assert longest is not None and longest > 0

    def fits(context: int) -> bool:
        return all(rank.fits for rank in rank_budgets(Costs(k3), layout, cluster, Workload(context=context, concurrency=64)))

    assert fits(longest) and not fits(longest + 1)


def test_a_model_of_states_alone_has_no_longest_context(k3: Inventory) -> None:
    """Stage 0 of 31 holds three delta layers: memory does not limit its context."""
    stage = stages(k3.layers, 31)[0]
    assert longest_context(GIB, 1, k3, Layout(pp=31), stage, 2) is None


def test_precisions_of_the_experts(v3: Inventory) -> None:
    """bf16 doubles what fp8 needs but for the scales; mxfp4 takes 17 bits for 4 values."""
    routed = sum(g.parameters for g in v3.groups if g.kind == "routed")
    stage = stages(v3.layers, 1)[0]
    held = {name: Costs(v3, sizes_for(name)).weights(Layout(), stage)["routed"] for name in ("stored", "bf16", "fp8", "int4", "mxfp4")}
    assert held["stored"] == held["fp8"] == routed + routed // (128 * 128) * 4
    assert held["bf16"] == 2 * routed
    assert held["mxfp4"] == routed * 17 // 32
    assert held["int4"] == routed * 18 // 32


def test_impossible_layouts_are_refused(k3: Inventory) -> None:
    for layout, why in ((Layout(tp=5), "heads"), (Layout(pp=94), "layers"), (Layout(dp=897), "experts")):
        with pytest.raises(UsageError, match=why):
            checked(k3, layout)


def test_every_layout_uses_all_devices() -> None:
    found = list(every_layout(12))
    assert len(found) == len(set(found)) == 18
    assert all(layout.world == 12 for layout in found)


def test_the_search_and_serve_refuse_by_one_rule(published: Published) -> None:
    """Every layout of 12 and of 64 devices, of a model with latent attention, with KV heads, and with dense layers: what the plan allows
    of heads, widths and stages is what the runtime accepts."""
    from runtime.arch import read_arch
    from runtime.budget.layout import refusal
    from runtime.layout import BadLayout
    from runtime.layout import Layout as Served

    grouped = config_of(1 << 20)  # eight heads, two of keys and values
    for config in (*map(published, ("deepseek_v3", "kimi_k25", "kimi_k3")), grouped):
        inventory, arch = inventory_of(config), read_arch(config)
        for layout in (*every_layout(12), *every_layout(64)):
            if inventory.mixture is not None and layout.ep > inventory.mixture.experts:
                continue
            try:
                Served(layout.pp, layout.dp, layout.tp).checked(arch)
                accepted = True
            except BadLayout:
                accepted = False
            assert (refusal(inventory, layout) is None) == accepted, (config["model_type"], layout, refusal(inventory, layout))


def test_a_dense_width_that_does_not_divide_is_refused(published: Published) -> None:
    inventory = inventory_of({**published("deepseek_v3"), "intermediate_size": 18434})
    with pytest.raises(UsageError, match="width 18434"):
        checked(inventory, Layout(tp=4))
