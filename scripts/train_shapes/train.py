"""Train the shipped model from nothing: the language model on symbolic pictures, then the vision tower on those symbols."""

import argparse
import random
import time
from pathlib import Path

import torch
from architecture import build_config, build_model
from crew import join
from dialogues import Packer, Sampler, training_scene
from export import export
from learner import Learner, Optimisers, Scores
from sight import SYMBOL_NOISE, Symbols, Tower, draw_patches
from tokenizer import build_tokenizer

from probes.traffic.questions import PICTURE_KINDS
from probes.traffic.texts import TEXT_KINDS

LESSONS = ("colour", "where", "at", "exist", "relation", "count")  # learnt one after the other: each needs the mix to dwell on it
LESSON_SHARE = 0.45  # of the picture questions
TEXT_SHARE = 0.25  # of the conversations
PASS = 0.94
FEW, MANY = 2, 4  # most items of a scene, during the lessons and after
ROWS = 40  # conversations in a step
PICTURES = 64  # in a step of the vision tower
CROWDED = 9  # most items of a scene for the vision tower: more to see in each picture


class School:
    """The model with everything a stage of training needs, and its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rank, self.crew = join()
        self.tokenizer = build_tokenizer()
        self.packer = Packer(self.tokenizer)
        self.model = build_model(build_config(self.tokenizer))
        self.embedding = self.model.model.language_model.embed_tokens.weight
        self.learner = Learner(self.model)
        self.symbols = Symbols(self.packer)
        self.tower = Tower(self.model.model.visual)
        self.started = time.monotonic()

    def load(self, path: Path) -> None:
        """Continue from saved weights."""
        self.model.load_state_dict(torch.load(path, weights_only=True))

    def save(self, stage: str) -> None:
        """Weights of a stage, and the checkpoint in Hugging Face layout."""
        if self.rank:
            return
        torch.save(self.model.state_dict(), self.folder / f"{stage}.pt")
        export(self.model, self.tokenizer, self.folder / "checkpoint")

    def report(self, stage: str, step: int, state: str) -> None:
        """Progress, once for all processes."""
        if not self.rank:
            print(f"{stage} {step} {time.monotonic() - self.started:.0f}s {state}", flush=True)


def schedule(step: int, steps: int, decay: float) -> float:
    """Learning-rate scale: 40 steps up, flat, down to zero over the last share `decay`."""
    return min(1.0, (step + 1) / 40, (steps - step) / (decay * steps))


def question_weights(scores: Scores, lesson: str | None) -> dict[str, float]:
    """How often each kind is asked: by how often it is answered wrongly, except that the present lesson has a fixed share."""
    pictures = {kind: 0.05 + (1 - scores.value[kind]) for kind in PICTURE_KINDS}
    if lesson:
        later = LESSONS[LESSONS.index(lesson) + 1 :]
        pictures = {kind: 0.1 if kind in later else weight for kind, weight in pictures.items() if kind != lesson}
        pictures[lesson] = sum(pictures.values()) * LESSON_SHARE / (1 - LESSON_SHARE)
    texts = {kind: 0.05 + (1 - scores.value[kind]) for kind in TEXT_KINDS}
    scale = sum(pictures.values()) / sum(texts.values()) * TEXT_SHARE / (1 - TEXT_SHARE)
    return pictures | {kind: weight * scale for kind, weight in texts.items()}


def learn_language(school: School, steps: int, seed: int, rate: float, lessons: list[str]) -> None:
    """Answers about symbolic pictures and texts: the lessons until each is passed, then everything."""
    optimisers = Optimisers([(name, weight) for name, weight in school.model.named_parameters() if "visual" not in name], rate)
    scores = Scores(PICTURE_KINDS + TEXT_KINDS)
    sampler = Sampler(seed + 1000 * school.rank, question_weights(scores, None), FEW if lessons else MANY)
    for step in range(steps):
        sampler.weights = question_weights(scores, lessons[0] if lessons else None)
        batch = school.packer.pack(sampler.conversations(ROWS // school.crew))
        outcome = school.learner.forward(batch, school.symbols(batch.scenes, school.embedding, SYMBOL_NOISE))
        optimisers.step(outcome.loss, schedule(step, steps, 0.25))
        scores.add(batch.kinds, outcome.right)
        if lessons and scores.value[lessons[0]] > PASS:
            lessons = lessons[1:]
            sampler.crowd = FEW if lessons else MANY
        if step % 20 == 0:
            state = f"ce {outcome.cross_entropy:.3f} balance {outcome.balance:.2f} lesson {lessons[:1]} {scores}"
            school.report("language", step, state)
        if step % 100 == 99:
            school.save("language")
    school.save("language")


def learn_sight(school: School, steps: int, seed: int) -> None:
    """The vision tower learns to say drawn pictures in the language model's own words."""
    rng = random.Random(seed + 1000 * school.rank)
    optimisers = Optimisers(list(school.model.model.visual.named_parameters()))
    embedding = school.embedding.detach()
    for step in range(steps):
        scenes = [training_scene(rng, CROWDED) for _ in range(PICTURES // school.crew)]
        seen, ideal = school.tower(draw_patches(scenes, rng)), school.symbols(scenes, embedding)
        pairs = [(seen.tokens, ideal.tokens), *zip(seen.deepstack, ideal.deepstack, strict=True)]
        errors = [(got - want).square().mean() / ideal.tokens.square().mean() for got, want in pairs]
        optimisers.step(torch.stack(errors).sum(), schedule(step, steps, 0.6))
        if step % 20 == 0:
            school.report("sight", step, "relative error " + " ".join(f"{error.item():.4f}" for error in errors))
    school.save("sight")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights of each stage and the checkpoint")
    parser.add_argument("--resume", type=Path, help="weights to start from")
    parser.add_argument("--language", type=int, default=1900, help="steps of the language model")
    parser.add_argument("--sight", type=int, default=650, help="steps of the vision tower")
    parser.add_argument("--no-lessons", action="store_true", help="the lessons are learnt already")
    parser.add_argument("--rate", type=float, default=0.5, help="learning-rate scale of the language model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    school = School(options.out)
    if options.resume:
        school.load(options.resume)
    if options.language:
        learn_language(school, options.language, options.seed, options.rate, [] if options.no_lessons else list(LESSONS))
    if options.sight:
        learn_sight(school, options.sight, options.seed)


if __name__ == "__main__":
    main()
