"""Causes that a fabric test shows, on answers in which exactly one thing is wrong: what was made wrong is named, and where."""

from __future__ import annotations

import msgspec
import pytest

from playbooks.cross_node.small_messages import share_of_rows
from playbooks.runner import diagnose
from probes.fabric.answer import Fabric, Node, Scale, Timing, departures, drifted, fitted
from probes.fabric.effort import segments
from probes.fabric.reach import Carried, Interface, Place, Reach, carried, interfaces, place, reach
from probes.fabric.reach import Listener as FabricListener
from probes.fabric.record import record

HOSTS = 4
GOOD = 1e9


def fabric(rate=lambda a, b: GOOD, together=lambda a, b: GOOD, busy=0.1, waiting=0.0, **changes):
    """Four hosts with one rank each. rate and together: bytes/s of an ordered pair; waiting: share of the time without a CPU."""
    pairs = [(a, b) for a in range(HOSTS) for b in range(HOSTS) if a != b]
    sizes = (4096, 1 << 20, 2 << 20)
    timings = [Timing(a, b, size, 1e-4 + size / rate(a, b), busy=busy) for a, b in pairs for size in sizes]
    timings += [Timing(a, b, sizes[-1], sizes[-1] / together(a, b), True, busy, waiting) for a, b in pairs]
    eth = [Interface("eth0", f"10.0.0.{n}", "10.0.0.0/24", 1500) for n in range(HOSTS)]
    answer = {
        "nodes": [Node(n, f"node{n}", str(n), "cpu", {"lo": 0, "eth0": 10**8}, 100_000, 30) for n in range(HOSTS)],
        "places": [Place(n, f"node{n} net:[{n}]", f"10.0.0.{n}", "", "eth0", 1, [eth[n]]) for n in range(HOSTS)],
        "reached": [Reach(a, b, 1e-4, "", [576, 1280, 1500]) for a, b in pairs],
        **changes,
    }
    return Fabric("gloo", HOSTS, collectives=[], timings=timings, pairs=fitted(timings), seconds=1.0, **answer)


def judged(answer, root, symptom="cross-node-throughput"):
    return diagnose(record(answer, root), symptom)


def test_a_well_fabric_is_healthy(tmp_path):
    found = judged(fabric(), tmp_path)
    assert found.verdict == "healthy" and not found.findings


def reached(but):
    """All pairs connect, but those that `but` changes."""
    return [but(a, b) or Reach(a, b, 1e-4, "", [576, 1280, 1500]) for a in range(HOSTS) for b in range(HOSTS) if a != b]


def silent(where):
    return lambda a, b: Reach(a, b, None, "no answer") if where(a, b) else None


def places(changed):
    """As usual, but rank -> (address, interface, MTU)."""
    made = []
    for n in range(HOSTS):
        address, interface, mtu = changed.get(n, (f"10.0.0.{n}", "eth0", 1500))
        made.append(Place(n, f"node{n} net:[{n}]", address, "", interface, 1, [Interface("eth0", f"10.0.0.{n}", "10.0.0.0/24", mtu)]))
    return made


def nodes(resent):
    return [Node(n, f"node{n}", str(n), "cpu", {"eth0": 10**8}, 100_000, resent.get(n, 30)) for n in range(HOSTS)]


def streams(slow):
    return [
        Carried(n, (n + 1) % HOSTS, name, 1e7 if name == slow else 1e9, name == "mgmt0") for n in range(HOSTS) for name in ("eth0", "mgmt0")
    ]


WRONG = {
    "a slow second interface in use": ({"carried": streams("mgmt0")}, "net.wrong-interface", [0, 1, 2, 3]),
    "a policed host": ({"nodes": nodes({2: 9_000})}, "net.packet-loss", [2]),
    "small frames": ({"places": places({1: ("10.0.0.1", "eth0", 1280)})}, "net.mtu-small", [1]),
    "a silent drop": ({"reached": reached(silent(lambda a, b: {a, b} == {1, 3}))}, "start.firewall", [1, 3]),
    "a host nobody reaches": ({"reached": reached(silent(lambda a, b: 2 in (a, b)))}, "start.firewall", [2]),
    "a port that swallows large frames": (
        {"reached": reached(lambda a, b: Reach(a, b, 1e-4, "", [576, 1500], [4000, 9000]) if 0 in (a, b) else None)},
        "net.mtu-blackhole", [0],
    ),
    "an address of no interface": (
        {
            "places": places({3: ("127.0.1.1", "", 1500)}),
            "reached": reached(lambda a, b: Reach(a, b, None, "Connection refused") if b == 3 else None),
        },
        "start.bad-bind-address", [3],
    ),
    "an interface that is not there": (
        {"places": places({1: ("", "", 1500)}), "reached": reached(lambda a, b: Reach(a, b, None, "none") if b == 1 else None)},
        "start.bad-bind-address", [1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_one_thing_that_is_wrong_is_named_first_and_where(tmp_path, name):
    changes, cause, ranks = WRONG[name]
    found = judged(fabric(**changes), tmp_path)
    first = found.findings[0]
    assert (first.id, first.subject.labels["ranks"]) == (cause, ranks)
    assert found.verdict == ("warning" if cause == "net.mtu-small" else "problem")
    assert all(evidence.observed is not None for evidence in first.evidence) and first.remedy


def test_what_stops_a_start_is_also_found_when_asked_about_a_hang(tmp_path):
    changes, cause, ranks = WRONG["a silent drop"]
    found = judged(fabric(**changes), tmp_path, "hang")
    assert found.findings[0].id == cause and found.findings[0].subject.labels["ranks"] == ranks


def outcome(answer, root, cause):
    return next(one for one in judged(answer, root).checks if one.id == cause)


def mixed(used, other):
    """Streams of four ranks over mgmt0, which is in use, and eth0; None did not end."""
    rates = (("mgmt0", used), ("eth0", other))
    return [Carried(n, (n + 1) % HOSTS, name, rate[n], name == "mgmt0") for n in range(HOSTS) for name, rate in rates]


@pytest.mark.parametrize(
    ("used", "other", "expected", "said"),
    [
        ([None] * 4, [GOOD] * 4, "skipped", "ranks 0, 1, 2 and 3"),
        ([GOOD, GOOD, GOOD, 1e7], [GOOD] * 4, "skipped", "rank 3"),
        ([GOOD] * 4, [None] * 4, "not_applicable", "no other interface"),
        ([GOOD] * 4, [1e7] * 4, "pass", "1.00"),
    ],
)
def test_interfaces_that_cannot_be_compared_rule_nothing_out(tmp_path, used, other, expected, said):
    made = outcome(fabric(carried=mixed(used, other)), tmp_path, "net.wrong-interface")
    assert made.outcome == expected and said in made.summary


NOTHING_SEEN = {
    "net.mtu-blackhole": ({"reached": [Reach(a, b, 1e-4) for a in range(HOSTS) for b in range(HOSTS) if a != b]}, "skipped"),
    "net.packet-loss": ({"nodes": [Node(n, f"node{n}", str(n), "cpu", {}) for n in range(HOSTS)]}, "skipped"),
    "start.firewall": ({"places": places(dict.fromkeys(range(HOSTS), ("127.0.1.1", "", 1500)))}, "not_applicable"),
    "net.gid": ({}, "skipped"),
}


@pytest.mark.parametrize("cause", NOTHING_SEEN)
def test_what_was_not_looked_at_is_not_ruled_out(tmp_path, cause):
    changes, expected = NOTHING_SEEN[cause]
    assert outcome(fabric(**changes), tmp_path, cause).outcome == expected


def test_one_address_on_both_hosts_is_no_common_network():
    docker = Interface("docker0", "172.17.0.1", "172.17.0.0/16", 1500)
    eth = [Interface("eth0", f"10.0.0.{n}", "10.0.0.0/24", 1500) for n in (1, 2)]
    here, there = (Place(n, str(n), one.address, "", "eth0", 1, [one, docker]) for n, one in enumerate(eth))
    assert carried(here, there) == []


def test_a_slow_host_is_a_link_or_a_cpu(tmp_path):
    slow = {"rate": lambda a, b: GOOD / 20 if 2 in (a, b) else GOOD, "together": lambda a, b: GOOD / 20 if 2 in (a, b) else GOOD}
    found = judged(fabric(**slow), tmp_path)
    assert [(one.id, one.subject.labels["ranks"]) for one in found.findings] == [("net.degraded-link", [2])]
    found = judged(fabric(**slow, busy=0.98), tmp_path)
    assert [(one.id, one.severity) for one in found.findings] == [("env.host-contended", "info")] and found.verdict == "inconclusive"


def test_paths_that_share_a_link_are_named(tmp_path):
    crossing = {(0, 2), (1, 3), (2, 0), (3, 1)}
    found = judged(fabric(together=lambda a, b: GOOD / 2 if (a, b) in crossing else GOOD), tmp_path)
    assert found.findings[0].id == "net.congestion" and set(found.findings[0].subject.labels["pairs"]) == {
        f"node{a}>node{b}" for a, b in crossing
    }
    everything_slower = judged(fabric(together=lambda a, b: GOOD / 3, busy=0.95), tmp_path)
    assert not everything_slower.findings  # few cores, no link


def test_a_host_that_is_slow_alone_is_no_shared_link_and_hides_none(tmp_path):
    """What is sent to a host waits for what it sends back: the paths into it are slow only while all send."""

    def ids(shared):
        found = judged(
            fabric(
                rate=lambda a, b: GOOD / 20 if a == 0 else GOOD,
                together=lambda a, b: GOOD / 20 if a == 0 else GOOD / 2 if b == 0 or {a, b} == shared else GOOD,
            ),
            tmp_path,
        )
        return {one.id: one.subject.labels["hosts"] for one in found.findings if one.role == "root"}

    assert ids(None) == {"net.degraded-link": ["node0"]}
    assert ids({1, 2}) == {"net.degraded-link": ["node0"], "net.congestion": ["node1", "node2"]}


def test_a_shared_link_is_undetermined_where_a_cpu_limits_all(tmp_path):
    found = judged(fabric(together=lambda a, b: GOOD / 3, busy=0.95), tmp_path)
    (check,) = [one for one in found.checks if one.id == "net.congestion"]
    assert check.outcome == "skipped" and "host-contended, bandwidth undetermined" in check.summary


def test_small_frames_explain_the_slow_paths_of_their_host(tmp_path):
    small = places({2: ("10.0.0.2", "eth0", 576)})
    found = judged(fabric(rate=lambda a, b: GOOD / 20 if (a, b) == (2, 0) else GOOD, places=small), tmp_path)
    assert [(one.id, one.role) for one in found.findings[:2]] == [("net.mtu-small", "root"), ("net.degraded-link", "cascade")]
    other = judged(fabric(rate=lambda a, b: GOOD / 20 if (a, b) == (1, 0) else GOOD, places=small), tmp_path)
    assert [(one.id, one.role) for one in other.findings[:2]] == [("net.degraded-link", "root"), ("net.mtu-small", "root")]


def test_a_shared_link_is_undetermined_where_processes_waited_for_a_cpu(tmp_path):
    crossing = {(0, 2), (1, 3), (2, 0), (3, 1)}
    found = judged(fabric(together=lambda a, b: GOOD / 2 if (a, b) in crossing else GOOD, waiting=0.4), tmp_path)
    (check,) = [one for one in found.checks if one.id == "net.congestion"]
    assert check.outcome == "skipped" and "waited for a CPU 40%" in check.summary and not found.findings


def test_lost_packets_explain_the_slow_path(tmp_path):
    found = judged(fabric(rate=lambda a, b: GOOD / 20 if a == 2 else GOOD, nodes=nodes({2: 9_000})), tmp_path)
    assert [(one.id, one.role) for one in found.findings[:2]] == [("net.packet-loss", "root"), ("net.degraded-link", "cascade")]


def test_a_real_listener_is_reached_and_a_closed_port_is_not():
    listener = FabricListener()
    here = place(0, listener.port)
    there = Place(1, "elsewhere", "127.0.0.1", "", "", listener.port, [])
    assert (found := reach(here, there)).seconds is not None and found.seconds < 3 and not found.why
    listener.close()
    closed = reach(here, Place(1, "elsewhere", "127.0.0.1", "", "", 1, []))
    assert closed.seconds is None and closed.why == "Connection refused"
    assert reach(here, Place(1, "elsewhere", "", "", "", 1, [])).why.startswith("it has no interface")


def test_one_common_network_leaves_nothing_to_compare():
    assert all(one.mtu > 0 for one in interfaces())
    one = Place(0, "a", "10.0.0.1", "", "eth0", 1, [Interface("eth0", "10.0.0.1", "10.0.0.0/24", 1500)])
    assert carried(one, one) == []


def test_segments_of_the_kernels_own_format():
    """Two lines as Linux 6.18 prints them, cut to the columns that matter."""
    assert segments("Tcp: RtoAlgorithm InSegs OutSegs RetransSegs\nTcp: 1 5 4000 37\n") == (4000, 37)
    assert segments(None) == (0, 0)


def test_drift_and_departure_by_hand():
    rounds = [[Timing(0, 1, 1 << 20, 0.1 if n < 4 else 0.2)] for n in range(6)]
    (drift,) = drifted(rounds)
    assert drift.change == pytest.approx(-0.5) and drift.lowest == pytest.approx((1 << 20) / 0.2)
    assert drifted(rounds[:2]) == []
    found = departures([Scale(1, 1, 0, 1e-5), Scale(2, 1, 1000, 1e-3), Scale(4, 2, 1500, 3e-3)])
    assert [one.departure for one in found] == [None, None, pytest.approx(2.0)]


def test_rows_that_cost_nothing_and_rows_that_cost_everything():
    import numpy as np

    rows = np.linspace(10, 400, 200)
    assert share_of_rows(np.full(200, 5e6), rows) == pytest.approx(0.0, abs=1e-9)
    assert share_of_rows(rows * 1e4, rows) == pytest.approx(1.0)


@pytest.mark.parametrize(("backend", "severity"), [("gloo", "info"), ("nccl", "warning")])
def test_little_shared_memory_is_a_warning_where_the_library_uses_it(tmp_path, backend, severity):
    small = [msgspec.structs.replace(one, shm_size=64 << 20, shm_free=60 << 20) for one in places({})]
    found = judged(msgspec.structs.replace(fabric(places=small), backend=backend), tmp_path)
    assert [(one.id, one.severity, one.confidence.basis) for one in found.findings] == [("start.shm", severity, "hypothesis")]
    assert found.findings[0].subject.labels["hosts"] == [f"node{n}" for n in range(HOSTS)]
