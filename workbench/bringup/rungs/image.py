"""Rung 12: pictures: they take tokens, and what is in them reaches the answer."""

from __future__ import annotations

from probes.asking import Asker, Told, about, picture_uri
from probes.checkpoint import read_config
from probes.traffic.scenes import Item, Scene, draw
from runtime.arch import read_arch
from traces.errors import BadAnswer
from workbench.bringup.document import Evidence
from workbench.bringup.rung import Outcome, Rung, failed, passed, skipped
from workbench.bringup.site import Site, diagnose

COLOURS = ("red", "green", "blue", "yellow")
ENOUGH = 3  # of them; a blind model that always says the same names one
QUESTION = "What colour is the circle?"
TOKENS = 24


def climb(site: Site) -> Outcome:
    config = read_config(site.model)
    if "vision_config" not in config:
        return skipped("the model takes text only")
    if site.options.endpoint is None and read_arch(config).vision is None:
        return skipped("this runtime serves the model as text only: its vision tower has not been judged")
    assert site.url is not None
    asker = Asker(site.url, site.options.served_name)
    more = diagnose("image-drift", site.run_flag)
    try:
        answers = {name: asker.chat(about(picture_uri(draw(disc(name))), QUESTION), TOKENS) for name in COLOURS}
        bare = asker.chat(QUESTION, 1).prompt_tokens
    except BadAnswer as error:
        return failed(f"a picture was refused: {error.message}", next=more)
    asker.close()
    filled = answers["red"].prompt_tokens
    taken = filled - bare if filled is not None and bare is not None else None
    used = "not told" if taken is None else str(taken)
    evidence = [Evidence(f"a {name} disc", answer.text, name) for name, answer in answers.items()]
    evidence.append(Evidence("prompt tokens for a picture", used, "above 0"))
    if taken is not None and taken <= 0:
        return failed("a picture takes no prompt tokens: it never reached the model", *evidence, next=more)
    if all(not answer.text.strip() and (answer.thought.strip() or answer.finish == "length") for answer in answers.values()):
        return skipped(f"it thinks before it answers, longer than {TOKENS} tokens: colours cannot be judged", *evidence)
    if len({_seen(answer) for answer in answers.values()}) == 1:
        told = "pictures of different colours are answered alike: what is in a picture does not reach the answer"
        return failed(told, *evidence, next=more)
    right = sum(name in answer.text.lower() for name, answer in answers.items())
    if right < ENOUGH:
        return failed(f"{right} of {len(answers)} colours were named right", *evidence, next=more)
    return passed(f"{right} of {len(answers)} colours named right; prompt tokens for a picture: {used}", *evidence)


def disc(colour: str) -> Scene:
    """A disc in the middle of a plain square."""
    return Scene((Item(4, "circle", colour, "big"),), seed=0)


def _seen(answer: Told) -> str:
    return answer.text.strip().lower()


RUNG = Rung(
    "image", "pictures: their preprocessing and the vision tower", ("environment", "config", "weights", "settings", "endpoint"), climb,
    asks=True,
)  # fmt: skip
