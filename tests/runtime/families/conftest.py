"""Tiny checkpoints of every family, what their references answer, and what one and two of our ranks compute."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

REPO = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("family_ranks.py")
LENGTHS = (37, 1, 16, 5, 44)


@dataclass
class Family:
    """A checkpoint, prompts, and what its reference answers: logits [T, V] for each prompt."""

    path: Path
    prompts: list[list[int]]
    logits: list[Any]
    reference: Any


class Families:
    """Builds on first use; keeps what was built and computed for the session."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._built: dict[str, Family] = {}
        self._computed: dict[tuple[str, int], list[Any]] = {}

    def __getitem__(self, name: str) -> Family:
        if name not in self._built:
            from tiny_checkpoints import BUILDERS

            path = self.root / name
            reference = BUILDERS[name](path)
            prompts = [np.random.default_rng(11 + n).integers(0, 290, n).tolist() for n in LENGTHS]
            self._built[name] = Family(path, prompts, [reference(prompt) for prompt in prompts], reference)
        return self._built[name]

    def one_rank(self, name: str) -> Any:
        """What a rank alone computes; in this process."""
        if (name, 1) not in self._computed:
            from family_ranks import compute

            family = self[name]
            self._computed[name, 1] = [compute(family.path, family.prompts, 1, 0)]
        return self._computed[name, 1][0]

    def two_ranks(self, name: str) -> list[Any]:
        """What each of two ranks computes; all families in one pair of processes."""
        import torch
        from tiny_checkpoints import BUILDERS

        if (name, 2) not in self._computed:
            jobs = {other: (str(self[other].path), self[other].prompts) for other in BUILDERS}
            torch.save(jobs, self.root / "jobs.pt")
            paths = [str(REPO), str(Path(__file__).parent), str(Path(__file__).parents[1])]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, str(PROGRAM), str(self.root), "2"]
            processes = [subprocess.Popen([*command, str(r)], env=environment, cwd=REPO, stderr=subprocess.PIPE, text=True) for r in (0, 1)]
            errors = [process.communicate(timeout=240)[1] for process in processes]
            assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
            outs = [torch.load(self.root / f"out{rank}.pt", weights_only=False) for rank in (0, 1)]
            for other in BUILDERS:
                self._computed[other, 2] = [out[other] for out in outs]
        return self._computed[name, 2]


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Families:
    pytest.importorskip("transformers")
    for folder in (Path(__file__).parent, Path(__file__).parents[1]):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # the programs that ranks run are imported here too
    return Families(tmp_path_factory.mktemp("families"))
