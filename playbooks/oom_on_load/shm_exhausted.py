"""oom.shm-exhausted: shared memory (/dev/shm) is full, or smaller than a segment that is asked for.

What is seen: SIGBUS (exit -7 or 135), or "No space left on device" with a path below /dev/shm; memory itself is free.

How it is told apart: by the size of the file system. A SIGBUS also comes from a mapped file that was truncated: then shared memory is free.
"""

from __future__ import annotations

import re

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.document import Remedy
from playbooks.oom_on_load.budget import mib, verdict
from playbooks.oom_on_load.story import BUS_ERROR, NEED, RankStory, story
from playbooks.oom_on_load.thresholds import SHM_USED

ID = "oom.shm-exhausted"
WORDS = re.compile(r"/dev/shm|shared memory|shm_open|No space left on device.*shm|bus error", re.IGNORECASE)


def test(case: Case) -> Result:
    found = story(case)
    signs = [one for one in found.ranks.values() if one.exit_code in (BUS_ERROR, 135) or WORDS.search(one.error + one.refused)]
    words = next((text for text in found.errors if WORDS.search(text)), "")
    if not signs and not words:
        return passed("nobody died of a bus error or spoke of shared memory")
    one = signs[0] if signs else found.worst or RankStory(0)
    size, before = one.fact("shm_size"), one.fact("shm_free")
    free = before if one.shm_free is None else one.shm_free
    used = 1 - free / size if size and free is not None else None
    if not words and not WORDS.search(one.error + one.refused) and used is not None and used < SHM_USED:
        said = f"a bus error, but {mib(free)} of shared memory were free: a mapped file was truncated"
        return passed(said, round(used, 3), SHM_USED, "used")
    room = f" It has {mib(size)}, of which {mib(before)} were free before and {mib(free)} are." if size is not None else ""
    sign = "Killed by a bus error" if one.exit_code in (BUS_ERROR, 135) else f"It says: {(words or one.error or one.refused)[:160]}"
    return verdict(
        case, ID, "Shared memory is exhausted", one, [one.rank], size or 0,
        f"{sign}.{room}",
        used if used is not None else 1.0, SHM_USED, "used",
        Remedy(
            text="Give the container more shared memory (--shm-size), or remove segments that a dead process left.",
            command="df -h /dev/shm; ls -l /dev/shm",
            risk="low",
            verify="workbench doctor",
        ),
        0.9 if words or one.error else 0.75, "established" if words else "supported", fatal=True,
    )  # fmt: skip


CHECK = Check(ID, "/dev/shm is full", mandatory=False, cost=9, test=test, needs=(NEED,), page=__doc__ or "")
