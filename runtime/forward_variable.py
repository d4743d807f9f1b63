"""The variable that chooses how a step is computed; apart from forward_style.py, so that it can be named without torch."""

FORWARD_STYLE = "WORKBENCH_DRILL_FORWARD"
