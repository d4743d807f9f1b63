"""oom.kv-no-room: the weights fit, and nothing is left for the keys and values of one longest request.

What is seen: no kill; the engine refuses to start and says so, or asks for fewer tokens.

How it is told apart: by its own words and arithmetic: bytes a token times the longest context against what is left.
"""

from __future__ import annotations

import re

from playbooks.case import Case
from playbooks.check import Check, Result, passed
from playbooks.document import Remedy
from playbooks.oom_on_load.budget import mib, verdict
from playbooks.oom_on_load.story import NEED, RankStory, Story, story
from playbooks.oom_on_load.thresholds import RETAINED, SMALL

ID = "oom.kv-no-room"
_REMEDY = Remedy(
    text="Shorten the context, keep KV in fp8, compute fewer tokens a step, or spread the weights over more ranks.",
    command="workbench serve MODEL --max-model-len N",
    risk="medium: longer requests are refused",
    verify="workbench plan MODEL --device-memory SIZE --context N",
)
WORDS = re.compile(
    r"no memory for a KV cache|No available memory for the cache blocks|KV cache is needed, which is larger|Not enough memory.*mem-fraction"
)


def test(case: Case) -> Result:
    found = story(case)
    said = next((text for text in [*found.errors, *(one.refused for one in found.ranks.values())] if WORDS.search(text)), "")
    if not said and not found.foreign:
        return _died_making_it(case, found)
    if not said:
        return passed("nobody refused for want of KV room")
    one = next((one for one in found.ranks.values() if one.refused == said), None) or found.worst or RankStory(0)
    needed, available = found.facts.get("kv_needed"), found.facts.get("kv_available")
    numbers = ""
    if needed and available is not None:
        longest = found.facts.get("max_model_len")
        numbers = f" One request needs {mib(needed)}, {mib(available)} are left."
        if longest:
            numbers += f" A context of {int(longest * available / needed):,} tokens fits, {int(longest):,} were asked for."
    return verdict(
        case, ID, "No room for the KV cache of one request", one, [one.rank], int(max(0, (needed or 0) - (available or 0))),
        f"It stopped with: {said.splitlines()[0][:200]}.{numbers}", float(available or 0), float(needed or 0), "bytes",
        _REMEDY, 0.95, fatal=True,
    )  # fmt: skip


def _died_making_it(case: Case, found: Story) -> Result:
    """The weights were in place as planned, and the rank died while the cache was made."""
    dead = [one for one in found.ranks.values() if one.died and one.died_in == "kv_cache" and one.settled is not None]
    sound = [one for one in dead if (one.settled or 0) <= (1 + RETAINED) * (one.fact("planned_kept") or 0) + SMALL]
    if not sound:
        return passed("nobody refused for want of KV room, and nobody died making the cache with sound weights")
    one = sound[0]
    left = None if one.limit is None else one.limit - one.base - (one.settled or 0)
    words = f" It says: {one.error[:160]}." if one.error else ""
    return verdict(
        case, ID, "No room for the KV cache", one, [other.rank for other in sound], max(0, left or 0),
        f"Rank {one.rank} held its weights ({mib(one.settled)}, as planned) and died while it made the KV cache; "
        f"{mib(left)} were left.{words}",
        float(left or 0), 0.0, "bytes", _REMEDY, 0.9, fatal=True,
    )  # fmt: skip


CHECK = Check(ID, "The KV cache has no room", mandatory=True, cost=8, test=test, needs=(NEED,), page=__doc__ or "")
