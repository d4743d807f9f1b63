"""The screen starts without what it does not need."""

from __future__ import annotations

import subprocess
import sys


def test_the_tui_imports_neither_torch_nor_plotly_nor_pandas():
    code = (
        "import sys, workbench.tui.app, workbench.tui.data.diagnoses as d, traces.store; d.symptom(0);"
        "print([name for name in ('torch', 'plotly', 'pandas', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_else_imports_textual():
    code = "import sys, workbench.cli.main, playbooks.runner, traces.store; print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
