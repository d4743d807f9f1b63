"""The person's side and the playbooks start without torch; `--help` starts without anything heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

TORCH_FREE = [
    "workbench.cli.main",
    "workbench.tui.app",
    "workbench.report.page",
    "playbooks.runner",
    "playbooks.remedy",
    "traces.store",
    "traces.collector.process",
    "probes.traffic.generator",
    "probes.fingerprint",
    "runtime.control_client",
    "runtime.launcher",
    "runtime.budget.planning",
    "runtime.verification.verify",
]
HEAVY = {"torch", "textual", "plotly", "pandas", "pyarrow", "duckdb", "numpy", "transformers", "starlette", "httpx"}


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.rpartition("MODULES ")[2].split()}


@pytest.mark.parametrize("module", TORCH_FREE)
def test_starts_without_torch(module: str) -> None:
    assert "torch" not in modules_after(f"import {module}")


def test_help_imports_nothing_heavy() -> None:
    show_help = """
import sys
sys.argv = ["workbench", "--help"]
from workbench.cli.main import main
try:
    main()
except SystemExit:
    pass"""
    loaded = modules_after(show_help)
    assert not loaded & HEAVY
