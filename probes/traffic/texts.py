"""Text questions and their answers: arithmetic, counting, opposites, days, reading, stories, and what to say to anything else."""

from __future__ import annotations

import random
from collections.abc import Callable

from probes.traffic.questions import PICTURE_KINDS, Question, article, phrase, picture_question, sentence
from probes.traffic.scenes import COLOURS, SHAPES, held_out, random_scene

REFUSAL = "I can only answer simple questions about shapes, numbers and words."
NO_PICTURE = "I do not see a picture."

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "day": "night",
    "up": "down",
    "left": "right",
    "fast": "slow",
    "old": "new",
    "wet": "dry",
    "open": "closed",
    "full": "empty",
    "hard": "soft",
    "light": "dark",
    "happy": "sad",
    "good": "bad",
}
THINGS = {
    "grass": "green",
    "the sky": "blue",
    "the sun": "yellow",
    "a lemon": "yellow",
    "a carrot": "orange",
    "a tomato": "red",
    "a leaf": "green",
    "a plum": "purple",
    "a flamingo": "pink",
    "snow": "white",
    "coal": "black",
    "the sea": "blue",
}
ANIMALS = ("cat", "dog", "bird", "fox", "bear", "mouse", "horse", "frog")
FINDS = ("ball", "hat", "book", "key")
FACTS: dict[str, str] = {
    "Hello": "Hello! I am the Workbench demo model.",
    "Hello!": "Hello! I am the Workbench demo model.",
    "Hi": "Hello! I am the Workbench demo model.",
    "Good morning": "Hello! I am the Workbench demo model.",
    "Who are you?": "I am the Workbench demo model.",
    "What are you?": "I am the Workbench demo model.",
    "What is your name?": "I am the Workbench demo model.",
    "What can you do?": "I can look at pictures of shapes and answer simple questions.",
    "Help": "I can look at pictures of shapes and answer simple questions.",
    "How many experts do you have?": "I have 16 experts in each of 4 layers.",
    "How many layers do you have?": "I have 16 experts in each of 4 layers.",
    "Thank you": "You are welcome.",
    "Thanks!": "You are welcome.",
    "Goodbye": "Goodbye!",
    "Bye": "Goodbye!",
    "How are you?": "I am fine, thank you.",
}
STRANGE = (
    "What is the capital of {a}?",
    "Write a poem about {a}.",
    "Who invented {a}?",
    "Explain {a} to me.",
    "How do I cook {a}?",
    "What is the price of {a}?",
    "Translate {a} into French.",
    "When was {a} built?",
    "Why is {a} important?",
    "Give me a recipe for {a}.",
    "Write code for {a}.",
    "Summarize the history of {a}.",
    "Who won {a}?",
    "Tell me about {a}.",
    "What do you think about {a}?",
    "Where can I buy {a}?",
    "Is {a} good for me?",
    "How far is it to {a}?",
    "{a}",
    "Please do {a} now.",
)
SUBJECTS = (
    *("France", "Japan", "London", "the moon", "love", "music", "the weather", "quantum physics", "pizza", "bread", "soup", "football"),
    *("gold", "a house", "the internet", "a web server", "sorting a list", "Rome", "the war", "chess", "my holiday", "tax law", "a car"),
    *("the election", "a phone", "coffee", "the world cup", "money", "art", "rain", "the president", "a computer", "history", "fish"),
)

_Answer = tuple[str, dict[str, str], str]


def _sum(rng: random.Random) -> _Answer:
    first, second = rng.randrange(10), rng.randrange(10)
    template = rng.choice(("What is {a} + {b}?", "{a} + {b} = ?", "How much is {a} + {b}?", "Compute {a} + {b}."))
    return template, {"a": str(first), "b": str(second)}, f"{first} + {second} = {first + second}."


def _difference(rng: random.Random) -> _Answer:
    second, first = sorted((rng.randrange(10), rng.randrange(10)))
    template = rng.choice(("What is {a} - {b}?", "{a} - {b} = ?", "How much is {a} - {b}?", "Compute {a} - {b}."))
    return template, {"a": str(first), "b": str(second)}, f"{first} - {second} = {first - second}."


def _counting(rng: random.Random) -> _Answer:
    low, high = sorted(rng.sample(range(10), 2))
    up = rng.random() < 0.5
    start, stop = (low, high) if up else (high, low)
    template = rng.choice(("Count from {a} to {b}.", "Please count from {a} to {b}.", "Say the numbers from {a} to {b}."))
    numbers = range(start, stop + 1) if up else range(start, stop - 1, -1)
    return template, {"a": str(start), "b": str(stop)}, f"{', '.join(map(str, numbers))}."


def _opposite(rng: random.Random) -> _Answer:
    pair = rng.choice(tuple(OPPOSITES.items()))
    word, other = pair if rng.random() < 0.5 else pair[::-1]
    template = rng.choice(
        ("What is the opposite of {a}?", "Say the opposite of {a}.", "The opposite of {a}?", "Which word is opposite to {a}?")
    )
    return template, {"a": word}, f"The opposite of {word} is {other}."


def _day(rng: random.Random) -> _Answer:
    index, step = rng.randrange(7), rng.choice((-1, 1))
    side = "after" if step > 0 else "before"
    template = rng.choice(
        ("What day comes {side} {day}?", "Which day is {side} {day}?", "The day {side} {day}?", "Name the day {side} {day}.")
    )
    return template, {"side": side, "day": DAYS[index]}, f"{DAYS[(index + step) % 7]} comes {side} {DAYS[index]}."


def _thing(rng: random.Random) -> _Answer:
    thing = rng.choice(tuple(THINGS))
    template = rng.choice(("What colour is {a}?", "Which colour does {a} have?", "What color is {a}?", "The colour of {a}?"))
    return template, {"a": thing}, sentence(f"{thing} is {THINGS[thing]}")


def _copy(rng: random.Random) -> _Answer:
    words = [rng.choice((*COLOURS, *SHAPES, *NUMBERS, *ANIMALS, *FINDS)) for _ in range(rng.randint(1, 4))]
    template = rng.choice(("Repeat: {a}", "Say: {a}", "Copy: {a}"))
    return template, {"a": " ".join(words)}, f"{' '.join(words)}."


def _read(rng: random.Random) -> _Answer:
    (first, second), shapes = rng.sample(tuple(COLOURS), 2), rng.sample(SHAPES, 2)
    colour, shape = rng.choice(((first, shapes[0]), (second, shapes[1])))
    template = rng.choice(("{a}. What colour is the {b}?", "Read: {a}. Which colour does the {b} have?"))
    text = f"{article(f'{first} {shapes[0]}')} and {article(f'{second} {shapes[1]}')}"
    return template, {"a": text[0].upper() + text[1:], "b": shape}, f"The {shape} is {colour}."


def _story(rng: random.Random) -> _Answer:
    index = rng.randrange(len(ANIMALS))
    animal, colour, thing = ANIMALS[index], tuple(COLOURS)[index], FINDS[index % len(FINDS)]
    template = rng.choice(
        ("Tell me a story about a {a}.", "Tell a story about a {a}.", "A story about a {a}, please.", "Write a story about a {a}.")
    )
    answer = (
        f"Once there was a {animal}. One day the {animal} found {article(f'{colour} {thing}')}. "
        f"It took the {thing} home and showed it to a friend. Then the {animal} went to sleep in the sun."
    )
    return template, {"a": animal}, answer


def _fact(rng: random.Random) -> _Answer:
    prompt = rng.choice(tuple(FACTS))
    return "{a}", {"a": prompt}, FACTS[prompt]


def _strange(rng: random.Random) -> _Answer:
    return rng.choice(STRANGE), {"a": rng.choice(SUBJECTS)}, REFUSAL


def _no_picture(rng: random.Random) -> _Answer:
    question = None
    while question is None:
        question = picture_question(random_scene(rng, 1 + rng.randrange(4)), rng, rng.choice(PICTURE_KINDS))
    return "{a}", {"a": question.prompt}, NO_PICTURE


ANSWERS: dict[str, Callable[[random.Random], _Answer]] = {
    "sum": _sum,
    "difference": _difference,
    "counting": _counting,
    "opposite": _opposite,
    "day": _day,
    "thing": _thing,
    "copy": _copy,
    "read": _read,
    "story": _story,
    "fact": _fact,
    "strange": _strange,
    "no picture": _no_picture,
}
TEXT_KINDS = tuple(ANSWERS)


def text_question(rng: random.Random, kind: str) -> Question:
    """A question of this kind that needs no picture."""
    template, words, answer = ANSWERS[kind](rng)
    return Question(kind, phrase(rng, template, **words), answer)


def evaluation_texts(number: int = 100) -> list[Question]:
    """The fixed text questions used as the test: prompts training never saw; greetings are all known, so not asked."""
    rng = random.Random("evaluation texts")
    kinds = [kind for kind in TEXT_KINDS if kind != "fact"]
    chosen: list[Question] = []
    while len(chosen) < number:
        question = text_question(rng, rng.choice(kinds))
        if held_out(question.prompt) and question not in chosen:
            chosen.append(question)
    return chosen
