"""Bytes that the exchange moved against bytes that routing needs: exact, and with messages of one size."""

from __future__ import annotations

import json

import pytest

from playbooks.drills.drill import HEALTHY, Dose, Drill
from playbooks.drills.lab import lab as served
from playbooks.runner import diagnose
from probes.points import ROUTED_ROW
from probes.traffic.plan import TrafficPlan
from traces import schema
from traces.store import write_rows

ID = "net.a2a-backend"
# Rows of real gloo ranks: what each gets in the padded exchange and in torch's own with exact splits, and the bytes that were sent.
PROGRAM = """
import torch, torch.distributed as dist
from types import SimpleNamespace
from runtime.forward_style import PaddedGroup
from runtime.parallel import Group
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
splits = [[(3 * a + 5 * b) % 7 for b in range(world)] for a in range(world)]
sent, received = splits[rank], [splits[a][rank] for a in range(world)]
rows = torch.randn(sum(sent), 8, generator=torch.Generator().manual_seed(rank))
exact = rows.new_empty(sum(received), 8)
dist.all_to_all_single(exact, rows, received, sent)
told = []
writers = SimpleNamespace(collective=lambda *row: told.append(row))
step = SimpleNamespace(detail=True, writers=writers, step=0, rank=rank)
group = Group("ep", rank, world, dist.group.WORLD)
padded = PaddedGroup(group)
same = torch.equal(padded.all_to_all(rows, sent, received, "dispatch", 0, step), exact)
(bytes_,) = [row[8] for row in told if row[5] == "dispatch"]
widest = max(max(line) for line in splits)
print(same, bytes_ == [widest * 32] * world, padded.seq == group.seq == 2)
"""


def checked(run):
    return next(check for check in diagnose(run, "cross-node-throughput", argv=()).checks if check.id == ID)


def told_of(lab, row_bytes, **machine):
    """A recorded run whose rows of an exchange have 512 bytes; its ranks say that they need `row_bytes`."""
    run = lab.run(machine=lab.Machine(bytes_per_row=512, **machine), traffic=lab.Traffic(requests=40))
    events = [(1, 0, f"rank{n}", n, ROUTED_ROW, json.dumps({"row_bytes": row_bytes, "top_k": 2})) for n in range(4)]
    write_rows(run, schema.EVENT, events, producer="rows")
    return run


@pytest.mark.parametrize(("row_bytes", "ratio", "outcome"), [(512, 1.0, "pass"), (1024, 0.5, "pass"), (256, 2.0, "fail")])
def test_the_ratio_is_that_of_the_bytes(lab, row_bytes, ratio, outcome):
    found = checked(told_of(lab, row_bytes))
    assert (found.outcome, found.observed) == (outcome, pytest.approx(ratio))


def test_between_hosts_it_is_an_error_and_exact_splits_are_not_called_padded(lab):
    (found,) = [one for one in diagnose(told_of(lab, 128, hosts=("a", "a", "b", "b")), "cross-node-throughput").findings if one.id == ID]
    assert found.severity == "error" and "equally long" not in found.summary
    assert found.impact.share == pytest.approx(0.75)


def test_without_the_size_of_a_row_nothing_is_said(lab):
    assert checked(lab.run(traffic=lab.Traffic(requests=20))).outcome == "skipped"


def test_the_padded_exchange_brings_the_same_rows_as_torch(gloo_ranks):
    assert gloo_ranks(PROGRAM, 3) == ["True True True"] * 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_served_run_moves_exactly_what_routing_needs(tmp_path):
    """The other way, padded, is a drill of cross-node-throughput."""
    with served(Drill("served", HEALTHY, ""), Dose(0, 0), 2, tmp_path, lambda said: None) as live:
        live.send(TrafficPlan(mix="shapes", concurrency=4, requests=16))
        run = live.run
    found = checked(run)
    assert (found.outcome, found.observed) == ("pass", 1.0)
