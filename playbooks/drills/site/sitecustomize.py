"""Loaded by every Python that has this folder on its path: see playbooks/drills/leak.py."""

import os
import sys

if "WORKBENCH_DRILL_LEAK" in os.environ and any("rank_agent" in word for word in sys.orig_argv):
    from playbooks.drills.leak import arm

    arm()
