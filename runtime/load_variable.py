"""The variable that chooses how weights are loaded; apart from load_style.py, so that it can be named without torch."""

LOAD_STYLE = "WORKBENCH_DRILL_LOAD_STYLE"
