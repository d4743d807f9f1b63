"""Causes that show in a served run on several hosts: each on a run in which it is so, and on one in which it is not."""

from __future__ import annotations

import pytest

from playbooks.runner import diagnose
from traces import schema
from traces.run import create_run
from traces.store import write_rows

ACROSS = ("a", "a", "b", "b")


def found(run, cause):
    return [one for one in diagnose(run, "cross-node-throughput").findings if one.id == cause]


@pytest.mark.parametrize(("hosts", "ranks"), [("abab", [0, 1, 2, 3]), ("aabb", None), ("abcd", None)])
def test_groups_that_are_dealt_out_over_hosts_with_room_for_them(tmp_path, hosts, ranks):
    """Two groups of two: across two hosts, inside each, and where no host holds two."""
    run = create_run(engine="workbench", model="shapes", root=tmp_path, world_size=4)
    rows = [(f"rank{n}", 1, host, n, n % 2, 0, n // 2, 0, 1, "rank", "cpu", "{}") for n, host in enumerate(hosts)]
    write_rows(run, schema.RESOURCE, rows, producer="ranks")
    assert [one.subject.labels["ranks"] for one in found(run, "net.placement")] == ([ranks] if ranks else [])


@pytest.mark.parametrize(
    ("machine", "small", "exposed"),
    [
        ({"hosts": ACROSS, "tiny": 6e6, "bandwidth": 1e12}, True, True),  # whatever is sent takes 6 ms
        ({"hosts": ACROSS, "tiny": 1e4, "bandwidth": 5e6}, False, True),  # every row counts
        ({"hosts": ACROSS, "tiny": 1e4, "bandwidth": 1e12}, False, False),  # the exchange takes next to nothing
        ({"hosts": ("a",) * 4, "tiny": 6e6, "bandwidth": 1e12}, False, False),  # no network
    ],
)
def test_an_exchange_that_decides_is_bound_by_latency_or_by_rows(lab, machine, small, exposed):
    run = lab.run(machine=lab.Machine(**machine), traffic=lab.Traffic(requests=60))
    assert bool(found(run, "net.small-message")) == small
    assert bool(found(run, "net.no-overlap")) == exposed
