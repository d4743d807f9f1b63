"""Questions about a scene and their answers: one small function a kind, phrased in several ways."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from probes.traffic.scenes import COLOURS, SHAPES, Item, Scene, held_out, place, random_scene

BASIC_KINDS = ("what", "colour", "shape", "size", "at", "description")
EXTRA_KINDS = ("where", "exist", "relation", "count")
PICTURE_KINDS = BASIC_KINDS + EXTRA_KINDS
OFFERED_KINDS = PICTURE_KINDS  # what the shipped model is offered for: the kinds it answers reliably
LOWER_CASE_SHARE = 0.25  # share of prompts typed without capitals


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and the one answer that counts as right."""

    kind: str
    prompt: str
    answer: str


PROMPTS: dict[str, tuple[str, ...]] = {
    "what": ("What is in the picture?", "What do you see?", "What is this?", "Which objects are there?"),
    "colour": ("What colour is the {shape}?", "Which colour does the {shape} have?", "What color is the {shape}?"),
    "shape": ("What shape is the {colour} object?", "Which shape is {colour}?", "Which shape does the {colour} object have?"),
    "size": ("How big is the {name}?", "Is the {name} big or small?", "What size is the {name}?"),
    "at": ("What is at the {place}?", "Which object is at the {place}?", "What do you see at the {place}?"),
    "description": ("Describe the picture.", "Describe this picture.", "Tell me what the picture shows."),
    "where": ("Where is the {name}?", "At which place is the {name}?", "Where do you see the {name}?"),
    "exist": ("Is there a {name}?", "Do you see a {name}?", "Does the picture show a {name}?"),
    "relation": ("What is {side} the {name}?", "Which object is {side} the {name}?"),
    "count": ("How many {things} are there?", "How many {things} do you see?", "Count the {things}."),
}

SIDES: dict[str, Callable[[Item, Item], bool]] = {
    "left of": lambda other, item: other.column < item.column,
    "right of": lambda other, item: other.column > item.column,
    "above": lambda other, item: other.row < item.row,
    "below": lambda other, item: other.row > item.row,
}


def phrase(rng: random.Random, template: str, **words: str) -> str:
    """Fill a prompt template; now and then typed in lower case."""
    prompt = template.format(**words)
    return prompt.lower() if rng.random() < LOWER_CASE_SHARE else prompt


def article(name: str) -> str:
    """The name with its indefinite article: "an orange star"."""
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def sentence(text: str) -> str:
    """Capital first letter, full stop."""
    return f"{text[0].upper()}{text[1:]}."


def _listing(names: list[str]) -> str:
    *first, last = [article(name) for name in names]
    return f"{', '.join(first)} and {last}" if first else last


def _only(items: list[Item]) -> list[Item]:
    """Items that a name picks out without doubt."""
    names = [item.name for item in items]
    return [item for item in items if names.count(item.name) == 1]


def _what(scene: Scene, rng: random.Random) -> tuple[dict[str, str], str]:
    return {}, sentence(_listing([item.name for item in scene.items]))


def _description(scene: Scene, rng: random.Random) -> tuple[dict[str, str], str]:
    return {}, " ".join(sentence(f"{article(f'{item.size} {item.name}')} at the {item.place}") for item in scene.items)


def _colour(scene: Scene, rng: random.Random) -> tuple[dict[str, str], str] | None:
    shapes = [item.shape for item in scene.items]
    single = [item for item in scene.items if shapes.count(item.shape) == 1]
    if not single:
        return None
    item = rng.choice(single)
    return {"shape": item.shape}, f"The {item.shape} is {item.colour}."


def _shape(scene: Scene, rng: random.Random) -> tuple[dict[str, str], str] | None:
    colours = [item.colour for item in scene.items]
    single = [item for item in scene.items if colours.count(item.colour) == 1]
    if not single:
        return None
    item = rng.choice(single)
    return {"colour": item.colour}, f"The {item.colour} object is a {item.shape}."


def _size(scene: Scene, rng: random.Random) -> tuple[dict[str, str], str] | None:
    single = _only(list(scene.items))
    if not single:
        return None
    item = rng.choice(single)
    return {"name": item.name}, f"The {item.name} is {item.size}."


def _where(scene: Scene, rng: random.Random) -> tuple[dict[str, str], str] | None:
    single = _only(list(scene.items))
    if not single:
        return None
    item = rng.choice(single)
    return {"name": item.name}, f"The {item.name} is at the {item.place}."


def _at(scene: Scene, rng: random.Random) -> tuple[dict[str, str], str]:
    if rng.random() < 0.75:
        item = rng.choice(scene.items)
        return {"place": item.place}, sentence(article(item.name))
    cell = rng.choice([cell for cell in range(9) if all(item.cell != cell for item in scene.items)])
    return {"place": place(cell)}, "Nothing."


def _exist(scene: Scene, rng: random.Random) -> tuple[dict[str, str], str]:
    """Yes and No equally often; a No shares the colour or the shape with something in the picture."""
    item = rng.choice(scene.items)
    if rng.random() < 0.5:
        return {"name": item.name}, f"Yes, there is {article(item.name)}."
    present = {other.name for other in scene.items}
    near = [f"{item.colour} {shape}" for shape in SHAPES] * 2 + [f"{colour} {item.shape}" for colour in COLOURS]
    name = rng.choice([candidate for candidate in near if candidate not in present])
    return {"name": name}, f"No, there is no {name}."


def _relation(scene: Scene, rng: random.Random) -> tuple[dict[str, str], str] | None:
    """Only when at most one item lies on that side; "Nothing." in about a third of the questions."""
    choices: dict[bool, list[tuple[str, Item, str]]] = {True: [], False: []}
    for item in _only(list(scene.items)):
        for side, lies in SIDES.items():
            found = [other.name for other in scene.items if lies(other, item)]
            if len(found) < 2:
                choices[bool(found)].append((side, item, sentence(article(found[0])) if found else "Nothing."))
    pool = choices[bool(choices[True]) and rng.random() < 0.67]
    if not pool:
        return None
    side, item, answer = rng.choice(pool)
    return {"side": side, "name": item.name}, answer


def _count(scene: Scene, rng: random.Random) -> tuple[dict[str, str], str]:
    wanted = rng.choice(("object", "object", *SHAPES, scene.items[0].shape, scene.items[-1].shape))
    number = sum(wanted in ("object", item.shape) for item in scene.items)
    counted = {0: f"are no {wanted}s", 1: f"is 1 {wanted}"}.get(number, f"are {number} {wanted}s")
    return {"things": f"{wanted}s"}, f"There {counted}."


ANSWERS: dict[str, Callable[[Scene, random.Random], tuple[dict[str, str], str] | None]] = {
    "what": _what,
    "colour": _colour,
    "shape": _shape,
    "size": _size,
    "at": _at,
    "description": _description,
    "where": _where,
    "exist": _exist,
    "relation": _relation,
    "count": _count,
}


def picture_question(scene: Scene, rng: random.Random, kind: str) -> Question | None:
    """A question of this kind about the scene, or None where the scene gives no clear answer."""
    found = ANSWERS[kind](scene, rng)
    if found is None:
        return None
    words, answer = found
    return Question(kind, phrase(rng, rng.choice(PROMPTS[kind]), **words), answer)


def picture_questions(scene: Scene, rng: random.Random) -> list[Question]:
    """One question of every kind that the scene can answer and that the shipped model is offered for."""
    asked = (picture_question(scene, rng, kind) for kind in OFFERED_KINDS)
    return [question for question in asked if question is not None]


def evaluation_pictures(kinds: tuple[str, ...] = OFFERED_KINDS, number: int = 200) -> list[tuple[Scene, Question]]:
    """The fixed picture questions used as the test: scenes training never saw, kinds in turn, one to four items."""
    rng = random.Random("evaluation pictures")
    chosen: list[tuple[Scene, Question]] = []
    while len(chosen) < number:
        scene = random_scene(rng, 1 + rng.randrange(4))
        question = picture_question(scene, rng, kinds[len(chosen) % len(kinds)])
        if question is not None and held_out(scene.key):
            chosen.append((scene, question))
    return chosen
