"""What an examination wrote down: events of the kinds below, one fact each. The checks read these, and evidence is the query for them."""

from __future__ import annotations

import json
from typing import Any

from playbooks.case import Case
from playbooks.check import Need

TEMPLATE = "examined_template"  # the rendered prompt of the folder
SENT = "examined_sent"  # one prompt as an endpoint counted or tokenised it, beside ours
STOPS = "examined_stops"  # ids that end an answer, by origin
SAMPLING = "examined_sampling"  # one sampling setting
VOCABULARY = "examined_vocabulary"  # tokenizer against embedding
DAMAGE = "examined_damage"  # one thing wrong with the files
FILES = "examined_files"  # how far the files were looked at
TIES = "examined_ties"  # flags and tensors of the output head
SCALES = "examined_scales"  # scales of quantised weights, one dtype of the file
ROPE = "examined_rope"  # what the config says of positions, in all its places
LOAD = "examined_load"  # whether the folder can be loaded
FINITE = "examined_finite"  # largest and first not finite value of our own forward pass
COVERAGE = "examined_coverage"  # experts that the probe reached
CHUNKS = "examined_chunks"  # a prompt in chunks beside the prompt in one
COMPARED = "examined_compared"  # two sides in whole: KL, agreement
TAP = "examined_tap"  # one tap of the two sides
NORMS = "examined_norms"  # what the norms of two sides leave of a faint row
TRIAL = "examined_trial"  # what would make the first diverging tap right
ANSWER = "examined_answer"  # an endpoint's answer, token by token, beside ours: where it parts from it, or is farthest
LIVE = "examined_live"  # the run that is judged: whether its server could be asked
REUSED = "examined_reused"  # one prompt, computed and from the prefix cache
SETTING = "examined_setting"  # what the run's server was set to that computes otherwise than one rank in float32


def facts(case: Case, kind: str) -> list[dict[str, Any]]:
    """All facts of a kind, in the order they were written."""
    key = f"garbled-{kind}"
    if key not in case.memo:
        rows = case.store.rows(f"SELECT attrs FROM event WHERE kind = {case.literal(kind)} ORDER BY ts")
        case.memo[key] = [json.loads(row["attrs"]) if isinstance(row["attrs"], str) else row["attrs"] for row in rows]
    found: list[dict[str, Any]] = case.memo[key]
    return found


def fact(case: Case, kind: str) -> dict[str, Any] | None:
    """The only one of its kind."""
    return next(iter(facts(case, kind)), None)


def need(kind: str, what: str, provide: str) -> Need:
    """Facts without which a check cannot decide."""
    return Need(what, "event", 1, provide, where=f"kind = '{kind}'", time="")


def query(case: Case, kind: str, field: str, where: str = "") -> str:
    """SQL for one field of the facts of a kind; `where` is a further condition."""
    more = f" AND {where}" if where else ""
    return f"SELECT attrs->>{case.literal('$.' + field)} AS value FROM event WHERE kind = {case.literal(kind)}{more}"
