"""Faults of the symptom tail-latency, really produced on a live server of the shipped model, and healthy controls.

No flag tells the playbook what was done: a placement made for other traffic, a rank that is stopped in a duty cycle, a
library that leaks inside a rank, more requests than the engine carries, a KV pool that is too small, long prompts among short
answers, an API process that gets no time. Causes of foreign engines, or of hardware, are tested on recorded data only.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from playbooks.drills.drill import HEALTHY, Dose, Drill, Truth, rank_of
from playbooks.drills.lab import WARM_UP, Lab
from playbooks.drills.leak import variable
from playbooks.drills.pressure import busy, interrupted
from playbooks.tail_latency.stale_placement import stale
from probes.traffic.plan import TrafficPlan
from runtime.shipped import shapes_moe

RANKS = 4
PROMPTS = 120
KV_BLOCKS = 4096  # 65,536 tokens a rank: nothing that a drill sends fills them
STEPS = 45  # of prompts: the checks want 30


def prompts(dose: Dose, **changes: Any) -> TrafficPlan:
    """Long conversations, some about a picture, one token of answer: the work is in the prompts."""
    plan: dict[str, Any] = {
        "mix": "prefill-heavy", "concurrency": 8, "requests": PROMPTS, "image_share": 0.25, "turns": 18, "max_tokens": 1,
        "seed": 100 * dose.seed + 1,
    }  # fmt: skip
    return TrafficPlan(**plan | changes)


def chat(dose: Dose, **changes: Any) -> TrafficPlan:
    """Short questions, some about a picture, answers of 48 tokens: the work is in decoding."""
    plan: dict[str, Any] = {
        "mix": "shapes", "concurrency": 8, "requests": 64, "image_share": 0.25, "max_tokens": 48, "ignore_eos": True,
        "seed": 100 * dose.seed + 2,
    }  # fmt: skip
    return TrafficPlan(**plan | changes)


def _ready(lab: Lab, dose: Dose) -> None:
    lab.warm_up(prompts(dose, requests=WARM_UP, seed=100 * dose.seed))


# -- controls -----------------------------------------------------------------------------------------------------------------------


def well(lab: Lab, dose: Dose) -> Truth:
    _ready(lab, dose)
    lab.send_steps(prompts(dose), STEPS)
    return Truth()


def well_chatting(lab: Lab, dose: Dose) -> Truth:
    _ready(lab, dose)
    lab.send(chat(dose))
    return Truth()


def well_on_a_loaded_host(lab: Lab, dose: Dose) -> Truth:
    """As many busy processes as the dose says, on any CPU: everybody is slow now and then, nobody in particular."""
    _ready(lab, dose)
    with busy(dose.strength + 1):
        lab.send_steps(prompts(dose), STEPS)
    return Truth()


def in_stages(lab: Lab, dose: Dose) -> Truth:
    lab.send(prompts(dose, requests=WARM_UP, seed=100 * dose.seed))
    lab.send_steps(prompts(dose), STEPS)
    return Truth()


# -- faults -------------------------------------------------------------------------------------------------------------------------


def stale_placement(lab: Lab, dose: Dose) -> Truth:
    counts = lab.warm_up(prompts(dose, requests=WARM_UP, seed=100 * dose.seed))
    packed = stale(counts, lab.ranks, rank_of(dose, lab.ranks), (0.9, 1.0)[dose.strength])
    lab.place(packed.layers)
    lab.send_steps(prompts(dose), STEPS)
    return Truth((packed.rank,), tuple(counts), packed.experts)


def stopped_rank(lab: Lab, dose: Dose) -> Truth:
    _ready(lab, dose)
    rank = rank_of(dose, lab.ranks)
    with interrupted(lab.pid(rank), *((20.0, 20.0), (30.0, 10.0))[dose.strength]):
        lab.send_steps(prompts(dose), STEPS)
    return Truth((rank,))


def leaking_rank(lab: Lab, dose: Dose) -> Truth:
    _ready(lab, dose)
    lab.send(chat(dose, requests=96))
    return Truth((rank_of(dose, RANKS),))


def overload(lab: Lab, dose: Dose) -> Truth:
    _ready(lab, dose)
    lab.send(chat(dose, concurrency=(32, 64)[dose.strength], requests=160))
    return Truth()


def small_kv_pool(lab: Lab, dose: Dose) -> Truth:
    lab.warm_up(chat(dose, image_share=0.0, requests=WARM_UP, seed=100 * dose.seed))  # long prompts do not fit
    lab.send(chat(dose, image_share=0.0, max_tokens=64, concurrency=24, requests=96))
    return Truth()


def long_prompts_among_answers(lab: Lab, dose: Dose) -> Truth:
    """Several long prompts arrive at once, a step takes them all, and every answer waits for it."""
    _ready(lab, dose)
    long = prompts(dose, image_share=0.0, turns=32, concurrency=None, rate=0.8, requests=16, seed=100 * dose.seed + 3)
    together = [long] * (10, 16)[dose.strength]  # one plan several times: the seed gives them the same times
    lab.send(chat(dose, image_share=0.0, requests=192), *together)
    return Truth()


def starved_frontend(lab: Lab, dose: Dose) -> Truth:
    _ready(lab, dose)
    with interrupted(lab.server.process.pid, *((240.0, 30.0), (480.0, 30.0))[dose.strength]):
        lab.send(chat(dose))
    return Truth()


def crowded_replica(lab: Lab, dose: Dose) -> Truth:
    """Some clients ask for one replica; the router spreads the others."""
    _ready(lab, dose)
    rank = rank_of(dose, lab.ranks)
    lab.send(chat(dose, requests=64), chat(dose, requests=48, concurrency=(10, 16)[dose.strength], replica=rank, seed=100 * dose.seed + 3))
    return Truth((rank,))


def long_conversations(lab: Lab, dose: Dose) -> Truth:
    """Short questions, and a few conversations that are near the model's limit and always go to the replica that has their prefix."""
    _ready(lab, dose)
    rank = rank_of(dose, lab.ranks)
    long = prompts(dose, image_share=0.0, turns=24, reuse=True, replica=rank, concurrency=(20, 32)[dose.strength], requests=64)
    lab.send(long)
    lab.rest()
    short = chat(dose, image_share=0.0, max_tokens=12, requests=192, concurrency=6)
    lab.send(short, dataclasses.replace(long, requests=(40, 64)[dose.strength], max_tokens=160, ignore_eos=True))
    return Truth((rank,))


def salted_prompts(lab: Lab, dose: Dose) -> Truth:
    """Everybody repeats prompts; one client in so many gives each a salt of its own, so that nothing of it is in the cache."""
    known = prompts(dose, image_share=0.0, turns=(20, 30)[dose.strength], reuse=True, requests=240)
    _ready(lab, dose)
    lab.send(known)
    lab.rest()
    again = dataclasses.replace(known, concurrency=None, rate=8.0, requests=160)
    lab.send(again, dataclasses.replace(again, reuse=False, rate=1.2, requests=24, seed=known.seed + 7))
    return Truth()


def large_pictures(dose: Dose, root: Path) -> Path:
    """The shipped model with a preprocessor that makes many pixels of every picture."""
    folder = root.parent / "checkpoint"
    shutil.copytree(shapes_moe(), folder)
    config = folder / "preprocessor_config.json"
    wanted = json.loads(config.read_text())
    pixels = (400_000, 800_000)[dose.strength]
    config.write_text(json.dumps(wanted | {"size": {"shortest_edge": pixels, "longest_edge": pixels + 40_000}}))
    return folder


def pictures_among_answers(lab: Lab, dose: Dose) -> Truth:
    lab.warm_up(chat(dose, image_share=0.1, requests=WARM_UP, seed=100 * dose.seed))
    pictures = chat(dose, image_share=1.0, concurrency=None, rate=1.0, requests=24, max_tokens=1, seed=100 * dose.seed + 3)
    lab.send(chat(dose, image_share=0.0, requests=96), pictures)
    return Truth()


def uneven_stages(lab: Lab, dose: Dose) -> Truth:
    in_stages(lab, dose)
    return Truth((0, 1))


DRILLS = (
    Drill("healthy-prompts", HEALTHY, "long prompts on an even placement", well),
    Drill("healthy-chat", HEALTHY, "short questions and answers", well_chatting),
    Drill("healthy-loaded-host", HEALTHY, "the same prompts while other processes compute", well_on_a_loaded_host, ("1 other", "2 others")),
    Drill("healthy-stages", HEALTHY, "two pipeline stages of two layers", in_stages, settings=lambda dose: {"pp": 2, "ep": 2}),
    Drill(
        "uneven-stages",
        "tail.pipeline-bubble",
        "one of two pipeline stages holds three of the four layers",
        uneven_stages,
        ("3 of 4 layers",),
        settings=lambda dose: {"pp": 2, "ep": 2, "stage_layers": [3, 1]},
    ),
    Drill(
        "stale-placement",
        "tail.expert-imbalance",
        "the hottest experts of every layer sit on one rank",
        stale_placement,
        ("9/10 of the slots", "all slots"),
    ),
    Drill("stopped-rank", "tail.straggler-rank", "one rank is stopped in a duty cycle", stopped_rank, ("20 of 40 ms", "30 of 40 ms")),
    Drill(
        "leaking-rank",
        "tail.gc-pause",
        "a library inside one rank leaks objects",
        leaking_rank,
        ("1.5 M objects", "3 M objects"),
        environment=lambda dose: variable(rank_of(dose, RANKS), (1_500_000, 3_000_000)[dose.strength], 0.8),
    ),
    Drill(
        "overload",
        "tail.queueing",
        "more requests than the ranks may run at once",
        overload,
        ("32 in flight", "64 in flight"),
        settings=lambda dose: {"max_sequences": 2},
    ),
    Drill(
        "small-kv-pool",
        "tail.kv-preempt",
        "a KV pool that holds two answers",
        small_kv_pool,
        ("192 tokens a rank", "128 tokens a rank"),
        settings=lambda dose: {"kv_blocks": (48, 32)[dose.strength], "block_size": 4},
    ),
    Drill(
        "long-prompts",
        "tail.prefill-interference",
        "long prompts between the tokens of answers",
        long_prompts_among_answers,
        ("10 at once", "16 at once"),
        settings=lambda dose: {"ep": 2, "max_tokens_per_step": 8192},
    ),
    Drill(
        "crowded-replica",
        "tail.dp-imbalance",
        "some clients always ask for one data-parallel replica",
        crowded_replica,
        ("10 in flight there", "16 in flight there"),
        settings=lambda dose: {"max_sequences": 4},
    ),
    Drill(
        "long-conversations",
        "tail.long-context",
        "a few long conversations on one rank among short questions",
        long_conversations,
        ("20 at a time", "32 at a time"),
        settings=lambda dose: {"kv_blocks": KV_BLOCKS},
    ),
    Drill(
        "salted-prompts",
        "tail.prefix-miss",
        "one client salts its prompts, so that the prefix cache never has them",
        salted_prompts,
        ("20 turns", "30 turns"),
        settings=lambda dose: {"kv_blocks": 4 * KV_BLOCKS, "ep": 1},
    ),
    Drill(
        "large-pictures",
        "tail.encoder-block",
        "the preprocessor makes many pixels of every picture",
        pictures_among_answers,
        ("0.4 M pixels", "0.8 M pixels"),
        checkpoint=large_pictures,
    ),
    Drill(
        "starved-frontend",
        "tail.frontend-cpu",
        "the API process is stopped in a duty cycle",
        starved_frontend,
        ("240 of 270 ms", "480 of 510 ms"),
    ),
)
