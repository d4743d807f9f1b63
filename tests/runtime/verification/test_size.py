"""A checkpoint of Kimi K3's size, made of sparse files: 497,220 tensors in 96 headers, checked in seconds and little memory."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes.checkpoint import INDEX, ITEM_BYTES
from runtime.inventory.families import inventory_of

SHARDS = 96
PROGRAM = """
import json, re, sys, time
from runtime.verification.verify import verify
began = time.process_time()
found = verify(sys.argv[1])
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10  # ru_maxrss would count the parent, too
print(json.dumps([found.status, found.tensors, found.bytes, found.counts, time.process_time() - began, peak]))
"""


def write_sparse(folder: Path, config: dict[str, Any]) -> None:
    """Headers of every tensor; the data is a hole."""
    inventory = inventory_of(config)
    tensors = [(name, group.shape, group.dtype) for group in inventory.groups for name in group.names()]
    each = -(-len(tensors) // SHARDS)
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        header: dict[str, Any] = {}
        at = 0
        for name, shape, dtype in tensors[shard * each : (shard + 1) * each]:
            end = at + math.prod(shape) * ITEM_BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
            weight_map[name], at = file, end
        body = json.dumps(header, separators=(",", ":")).encode()
        with (folder / file).open("wb") as stream:
            stream.write(len(body).to_bytes(8, "little") + body)
            stream.truncate(8 + len(body) + at)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": inventory.stored_bytes}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))


def test_a_checkpoint_of_the_size_of_kimi_k3(published: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    write_sparse(tmp_path, published("kimi_k3"))
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    status, tensors, nbytes, counts, seconds, peak = json.loads(done.stdout)
    assert (status, tensors, nbytes, counts) == ("ok", 497_220, 1_560_860_324_864, {})
    assert peak < 800 << 20, f"{peak >> 20} MiB"
    assert seconds < 60, seconds  # CPU seconds; a few on a quiet machine


@pytest.mark.parametrize("size", [8 << 60])
def test_files_of_8_eb_are_refused_not_read(tmp_path: Path, size: int) -> None:
    """A header may claim what no disk holds."""
    from runtime.verification.verify import verify

    body = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(body).to_bytes(8, "little") + body)
    (tmp_path / "config.json").write_text('{"model_type": "any"}')
    assert {problem.kind for problem in verify(tmp_path).problems} == {"bad-header"}
