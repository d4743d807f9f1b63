"""Tables that vendors' tools print, as devices and what joins them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes.topology import HOST, PEER, parse
from traces.errors import UsageError

SAMPLES = Path(os.environ.get("WORKBENCH_SAMPLES", Path(__file__).parents[3] / "shared" / "samples")) / "topo"

# The form of NVIDIA's own documentation of `nvidia-smi topo -m`: four devices, two of them NVLinked, a NIC, tabs.
NVIDIA = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV12\tSYS\tSYS\tPIX\t0-31\t0\n"
    "GPU1\tNV12\t X \tSYS\tSYS\tPXB\t0-31\t0\n"
    "GPU2\tSYS\tSYS\t X \tNV12\tSYS\t32-63\t1\n"
    "GPU3\tSYS\tSYS\tNV12\t X \tSYS\t32-63\t1\n"
    "NIC0\tPIX\tPXB\tSYS\tSYS\t X \t\t\n"
    "\nLegend:\n\n  X    = Self\n  NIC0: mlx5_0\n"
)


def test_nvlink_and_the_way_through_the_processor():
    found = parse(NVIDIA)
    assert found.devices == ("GPU0", "GPU1", "GPU2", "GPU3", "NIC0")
    assert found.joined("GPU0", "GPU1") == PEER and found.joined("GPU1", "GPU2") == HOST and found.joined("GPU0", "NIC0") == HOST
    assert found.links["GPU1", "NIC0"] == "PXB" and found.affinity["GPU2"] == "32-63"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample files are not here: topo")
def test_eight_ascend_devices():
    found = parse((SAMPLES / "ascend_npu_smi_topo_8x910b3.txt").read_text())
    assert len(found.devices) == 8 and len(found.links) == 56
    assert {found.joined(a, b) for a in found.devices for b in found.devices if a != b} == {PEER}
    assert found.affinity["NPU7"] == "48-71"


def test_mthreads_writes_its_links_as_mt():
    found = parse("      GPU0   GPU1\nGPU0  X      MT2\nGPU1  MT2    X\n")
    assert found.joined("GPU0", "GPU1") == PEER


def test_amd_as_json():
    text = '[{"gpu": 0, "links": [{"gpu": 0, "link_type": "SELF"}, {"gpu": 1, "link_type": "XGMI"}]}, {"gpu": 1, "links": []}]'
    found = parse(text)
    assert found.devices == ("GPU0", "GPU1") and found.joined("GPU0", "GPU1") == PEER and found.joined("GPU1", "GPU0") == ""


@pytest.mark.parametrize("text", ["", "No devices were found", "{}", "[1]", "GPU0 X\n", NVIDIA[:60]])
def test_anything_else_is_refused(text):
    with pytest.raises(UsageError):
        parse(text)
