"""Causes of slow traffic between hosts, on real logs and on fabrics with one thing wrong."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playbooks.attribution.pair_outliers import blamed
from playbooks.runner import diagnose
from probes.foreign import importing
from traces import schema
from traces.run import create_run
from traces.store import write_rows

SAMPLES = Path(os.environ.get("WORKBENCH_SAMPLES", Path(__file__).parents[3] / "shared" / "samples")) / "nccl"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"the sample files are not here: {SAMPLES.name}")


def judged(root, *logs, links=()):
    run = create_run(engine="imported", model="logs", root=root)
    if logs:
        for table, values in importing.read(list(logs))[0].items():
            write_rows(run, table, values, producer="import")
    if links:
        write_rows(run, schema.LINK, [(1, a, b, 4 << 20, False, None, rate) for (a, b), rate in links], producer="fabric")
    found = diagnose(run, "cross-node-throughput")
    return found, {check.id: check.outcome for check in found.checks}


@needs_samples
def test_a_good_log_alone_is_not_called_healthy(tmp_path):
    found, outcomes = judged(tmp_path, SAMPLES / "aws_efa_eks_nccl_tests.log")
    assert not found.findings and found.verdict == "inconclusive"  # no bandwidth was measured
    assert outcomes["net.socket-fallback"] == outcomes["net.gdr-off"] == outcomes["net.nic-affinity"] == "pass"
    assert outcomes["net.degraded-link"] == "skipped"


@needs_samples
def test_versions_that_differ_between_real_hosts_are_listed(tmp_path):
    found, _ = judged(tmp_path, SAMPLES / "aws_fsdp_slurm_ofi_nccl.log")
    assert [one.id for one in found.findings] == ["env.library-drift"]
    assert found.findings[0].subject.labels["keys"] == ["driver", "plugin"]


def line(host, text, device=0):
    return f"{host}:1:2 [{device}] NCCL INFO {text}\n"


def log(path, hosts):
    """host -> the `via` of its 16 sending channels."""
    path.write_text(
        "".join(
            line(host, f"Channel {i:02d}/0 : {n}[0] -> {n + 1}[0] [send] via {via(i)}")
            for n, (host, via) in enumerate(hosts.items())
            for i in range(16)
        )
    )
    return path


def ib(i):
    return f"NET/IB/{i % 8}/GDRDMA"


CASES = {
    "socket": ({"a": ib, "b": ib, "c": lambda i: "NET/Socket/0"}, "net.socket-fallback", ["c"]),
    "gdr": ({"a": ib, "b": lambda i: f"NET/IB/{i % 8}", "c": ib}, "net.gdr-off", ["b"]),
    "fewer nics": ({"a": ib, "b": ib, "c": lambda i: f"NET/IB/{i % 2}/GDRDMA"}, "net.nic-affinity", ["c"]),
    "crowded": ({"a": lambda i: f"NET/IB/{i % 8 if i < 8 else 3}/GDRDMA", "b": ib}, "net.nic-affinity", ["a"]),
}


@pytest.mark.parametrize("name", CASES)
def test_one_host_that_differs_is_named(tmp_path, name):
    hosts, cause, expected = CASES[name]
    found, _ = judged(tmp_path, log(tmp_path / "nccl.log", hosts))
    errors = [one for one in found.findings if one.severity == "error"]
    assert found.verdict == "problem" and errors[0].id == cause and errors[0].subject.labels["hosts"] == expected


def test_sockets_everywhere_are_only_a_hypothesis(tmp_path):
    found, _ = judged(tmp_path, log(tmp_path / "nccl.log", {"a": lambda i: "NET/Socket/0", "b": lambda i: "NET/Socket/0"}))
    assert found.verdict == "warning" and found.findings[0].confidence.basis == "hypothesis"


def test_a_setting_that_forbids_the_fast_network_is_named(tmp_path):
    path = log(tmp_path / "nccl.log", {"a": lambda i: "NET/Socket/0"})
    path.write_text(path.read_text() + line("a", "NCCL_IB_DISABLE set by environment to 1."))
    found, _ = judged(tmp_path, path)
    assert found.verdict == "problem" and "NCCL_IB_DISABLE=1" in found.findings[0].summary


@given(st.integers(3, 9), st.sampled_from(["host", "sending", "receiving", "path", "none"]), st.integers(0, 2**32))
def test_what_was_made_slow_is_blamed_and_nothing_else(hosts, kind, seed):
    rng = random.Random(seed)
    names = [f"h{i}" for i in range(hosts)]
    culprit, other = rng.sample(names, 2)
    slow = rng.uniform(0.1, 0.6)
    wanted = {"host": culprit, "sending": culprit, "receiving": culprit, "path": f"{culprit}>{other}"}.get(kind)

    def affected(a, b):
        return {"host": culprit in (a, b), "sending": a == culprit, "receiving": b == culprit, "path": (a, b) == (culprit, other)}.get(kind)

    bandwidth = {(a, b): rng.uniform(0.97, 1.03) * (slow if affected(a, b) else 1.0) * 1e9 for a in names for b in names if a != b}
    assert [(one.blame, one.name) for one in blamed(bandwidth)] == ([(kind, wanted)] if wanted else [])


def test_a_slow_rank_in_measured_links_is_a_finding(tmp_path):
    links = [((a, b), 2e7 if 2 in (a, b) else 1e9 * (1 + 0.01 * a)) for a in range(5) for b in range(5) if a != b]
    found, _ = judged(tmp_path, links=links)
    assert found.findings[0].id == "net.degraded-link" and found.findings[0].subject.labels["hosts"] == ["rank 2"]
    assert found.findings[0].evidence[0].observed == 20.0


@pytest.mark.parametrize(("address", "verdict"), [(" localGid fe80::1 remoteGids fe80::2", "problem"), ("", "warning")])
def test_transfers_without_an_answer_are_a_link_local_address_or_a_hypothesis(tmp_path, address, verdict):
    """The line as NCCL issue 426 quotes it; newer versions add the addresses."""
    path = log(tmp_path / "nccl.log", {"a": ib, "b": ib})
    said = "NET/IB : Got completion from peer 10.0.0.2<53482> with error 12, opcode 32769, len 32597, vendor err 129"
    path.write_text(path.read_text() + line("b", said + address))
    found, _ = judged(tmp_path, path)
    assert found.verdict == verdict and found.findings[0].id == "net.gid" and found.findings[0].subject.labels["hosts"] == ["b"]
