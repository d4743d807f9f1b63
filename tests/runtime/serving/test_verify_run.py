"""The experts that served ranks hold are those of the files; exchanged ones are named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probes.checkpoint import Checkpoint
from runtime.launcher import ServerProcess
from runtime.shipped import shapes_moe
from runtime.verification.verify import Wanted, verify

Rows = Callable[..., list[dict[str, Any]]]


def exchange(folder: Path, layer: int, one: int, other: int) -> None:
    """Swaps two experts of a fused layer in the files."""
    checkpoint = Checkpoint.open(folder)
    for name in ("gate_up_proj", "down_proj"):
        entry = checkpoint.tensors[f"model.language_model.layers.{layer}.mlp.experts.{name}"]
        size = entry.nbytes // entry.shape[0]
        data = bytearray((folder / entry.file).read_bytes())
        first, second = entry.offset + one * size, entry.offset + other * size
        data[first : first + size], data[second : second + size] = data[second : second + size], data[first : first + size]
        (folder / entry.file).write_bytes(data)


def test_live_slots_are_compared_with_the_files(server: ServerProcess, rows: Rows, tmp_path: Path) -> None:
    rows("SELECT 1 FROM placement HAVING count(*) >= 4")
    rows(f"SELECT 1 FROM event WHERE kind = 'weights' HAVING count(*) = {server.run.info.world_size}")
    found = verify(shapes_moe(), Wanted(run=server.run))
    assert found.status == "ok" and found.checked == ["headers", "live weights"] and "64 expert slots" in found.notes[0]
    assert sum(found.proven.values()) == found.tensors and not found.unproven
    copy = Path(shutil.copytree(shapes_moe(), tmp_path / "copy"))
    exchange(copy, 2, 3, 5)
    wrong = verify(copy, Wanted(run=server.run))
    assert [problem.kind for problem in wrong.problems] == ["hash", "hash"]
    assert all("layer 2 slot" in problem.tensor for problem in wrong.problems)
    assert {problem.detail for problem in wrong.problems} == {
        "it is to hold expert 3 and holds expert 5",
        "it is to hold expert 5 and holds expert 3",
    }
