"""Debug lines of NCCL: real logs, and every prefix that launchers put in front."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from probes.foreign import importing
from probes.foreign.collective_log import Channel, Fact, claims, read
from traces import schema

SAMPLES = Path(os.environ.get("WORKBENCH_SAMPLES", Path(__file__).parents[4] / "shared" / "samples")) / "nccl"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"the sample files are not here: {SAMPLES.name}")


@needs_samples
def test_a_real_log_of_sixteen_ranks_has_the_channels_that_were_counted_by_hand():
    """samples/README.md: 256 lines via P2P/IPC/read, 64 via NET/AWS Libfabric/N/GDRDMA."""
    rows, _ = importing.read([SAMPLES / "aws_efa_eks_nccl_tests.log"])
    kinds = Counter((row[5], row[6], row[8]) for row in rows[schema.CHANNEL])
    assert kinds == {("P2P", "IPC/read", None): 256, ("NET", "AWS Libfabric", True): 64}
    assert Counter(row[4] for row in rows[schema.CHANNEL] if row[5] == "NET") == {"send": 32, "receive": 32}
    assert {row[7] for row in rows[schema.CHANNEL] if row[5] == "NET"} == {0, 1, 2, 3}
    hosts = {row[0] for row in rows[schema.LIBRARY_FACT]}
    assert hosts == {"nccl-tests-efa-16-worker-0", "nccl-tests-efa-16-worker-1"}


@needs_samples
def test_lines_with_a_time_stamp_or_a_launchers_prefix():
    facts = [found for found in read(SAMPLES / "aws_fsdp_slurm_ofi_nccl.log") if isinstance(found, Fact)]
    assert {(f.host, f.value) for f in facts if f.name == "plugin"} == {
        ("p5-dy-gpu-4", "aws-ofi-nccl 1.13.2-aws"),
        ("p5-dy-gpu-3", "aws-ofi-nccl 1.14.0"),
    }
    docs = list(read(SAMPLES / "nccl_docs_debug_lines.log"))
    assert Fact("node-01", "trouble", "Failed to initialize any NET plugin") in docs
    assert Fact("node-01", "env.NCCL_SHM_DISABLE", "1") in docs
    assert Channel("node-01", 0, 0, 1, "send", "NET", "Socket", 0, False) in docs


PREFIX = "gpu-7:41:52 [3] NCCL INFO "
LINES = [
    (
        PREFIX + "Channel 03/0 : 12[4] -> 3[7] [receive] via NET/IB/5(8)/GDRDMA(PCI)/Shared",
        Channel("gpu-7", 3, 12, 3, "receive", "NET", "IB", 5, True),
    ),
    (PREFIX + "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IBext_v8/2", Channel("gpu-7", 0, 0, 8, "send", "NET", "IBext_v8", 2, False)),
    (PREFIX + "Channel 01 : 0[0] -> 1[1] via SHM/direct/direct", Channel("gpu-7", 1, 0, 1, "", "SHM", "direct/direct", None, None)),
    (PREFIX + "Channel 01/1 : 0[0] -> 1[1] via P2P/CUMEM", Channel("gpu-7", 1, 0, 1, "", "P2P", "CUMEM", None, None)),
    (PREFIX + "NCCL_IB_DISABLE set by environment to 1.", Fact("gpu-7", "env.NCCL_IB_DISABLE", "1")),
    (PREFIX + "Using network Socket", Fact("gpu-7", "network", "Socket")),
    ("7: " + PREFIX.replace("NCCL", "RCCL") + "Using network IB", Fact("gpu-7", "network", "IB")),
]


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_line_forms_of_the_library_sources(tmp_path, line, expected):
    log = tmp_path / "rank.log"
    log.write_text(f"starting\n{line}\nthe end\n")
    assert claims(log, log.read_bytes())
    assert list(read(log)) == [expected]


def test_a_log_of_another_form_is_not_claimed(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(b"INFO 2026 vllm engine started\n\xff\xfe\x00")
    assert not claims(log, log.read_bytes())
