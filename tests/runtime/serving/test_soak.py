"""Two hundred clients for a minute, a third of whom leave in the middle: nothing may be left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "tests" / "benchmarks" / "soak_bench.py"


@pytest.mark.slow
def test_nothing_is_left_of_two_hundred_clients() -> None:
    command = [sys.executable, str(BENCH), "--clients", "200", "--seconds", "60"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    left = {name: found[name] for name in ("requests_inside", "sequences", "kv_blocks", "queued_tokens", "missing", "twice", "broken")}
    assert not any(left.values()), left
    assert found["clean"] and done.returncode == 0, found
    assert found["completed"] > 100  # it was a crowd, and it was served
    assert found["left_in_the_middle"] > 20
    assert set(found["statuses"]) == {"200"}
