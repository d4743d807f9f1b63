"""Rung 6: the layout for real, on one host: it starts, and answers like one device."""

from __future__ import annotations

from probes.asking import Asker
from runtime.serve_config import ServeConfig
from runtime.server.tokenizer import Tokenizer
from runtime.server_process import StartFailed
from workbench.bringup.agreement import parting
from workbench.bringup.document import Evidence
from workbench.bringup.paper import fullest, layout_of, on_hosts, room
from workbench.bringup.rung import Outcome, Rung, failed, passed, skipped
from workbench.bringup.rungs.single_step import references_of
from workbench.bringup.site import Site, diagnose

MEMORY_WORDS = ("out of memory", "outofmemory", "signal 9", "killed", "cannot allocate", "does not fit")


def climb(site: Site) -> Outcome:
    config = on_hosts(site, 1)
    if config is None:
        return skipped("the layout can be cut to one host neither by replicas nor by stages")
    layout, there = layout_of(config), room(site)
    limit, rank = there.of_rank(layout.world), fullest(site, layout)
    if site.options.config.nodes > 1 and limit is not None and rank.total > limit:
        return skipped(f"one host is too small: a rank of {layout} needs {rank.total} bytes and has {limit} ({there.source})")
    return started_and_compared(site, config)


def started_and_compared(site: Site, config: ServeConfig) -> Outcome:
    """Starts a server of ours and holds its answers to those of one device."""
    try:
        server = site.serve(config)
    except StartFailed as error:
        words = Evidence("its last words", error.message)
        return failed(f"the server did not start: {_last(error.message)}", words, next=_pointers(error.message))
    layout = config.layout
    evidence = [
        Evidence("layout", f"tp {layout.tp}, pp {layout.pp}, dp {layout.dp} on {config.nodes} hosts"),
        Evidence("run", str(server.run.path)),
    ]
    references = references_of(site)
    if not references:
        return passed("it serves; there was no single device to compare answers with", *evidence)
    asker = Asker(server.url)
    tokenizer = Tokenizer.of(site.model)
    near = 0
    held = [one for one in references if asker.longest is None or len(one.ids) + len(one.tokens) <= asker.longest]
    if len(held) < len(references):
        evidence.append(Evidence("left to the step `long`", f"a prompt that does not fit the server's {asker.longest} tokens"))
    for reference in held:
        told = asker.complete(reference.ids, len(reference.tokens))
        expected = [tokenizer.piece(token) for token in reference.tokens]
        found = parting(expected, told.tokens, reference.gaps)
        if found is None:
            continue
        if not found.near_tie(site.full_precision):
            told_apart = f"answers to a prompt of {len(reference.ids)} tokens {found.words}, unlike one device"
            ours = (f"workbench validate {site.model}", *diagnose("garbled-output", f"--run {server.run.id}"))
            return failed(told_apart, *evidence, Evidence("answer", "".join(told.tokens), "".join(expected)), next=ours)
        near += 1
    asker.close()
    ties = f", {near} of them up to a near tie" if near else ""
    return passed(f"{len(held)} answers are those of one device{ties}", *evidence)


def _last(words: str) -> str:
    lines = [line for line in words.splitlines() if line.strip()]
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[-1])


def _pointers(words: str) -> tuple[str, ...]:
    """Which playbook knows about starts that end like this."""
    if any(word in words.lower() for word in MEMORY_WORDS):
        return diagnose("oom-on-load", "--run latest")
    return (*diagnose("hang", "--run latest"), *diagnose("slow-load", "--run latest"))


RUNG = Rung(
    "one host", "several ranks on one host", ("environment", "config", "weights", "settings"), climb, serves=True, inside=True
)  # fmt: skip
