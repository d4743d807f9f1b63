"""Asks a server about pictures: opposite pairs, that a blind model answers alike, and tokens by size.

Of a run of ours more can be known: what its live server makes of pictures, tensor and token ids; and sizes and grids of the pictures
that its requests brought.
"""

from __future__ import annotations

import base64
import json
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from playbooks.image_drift.pictures import jpeg, photograph, png
from playbooks.image_drift.probe import FOLDER, keep_probe
from playbooks.live_server import live_server
from probes.asking import Asker, about, data_uri, picture_uri
from probes.traffic.scenes import Item, Scene, draw
from runtime.control_client import ControlClient, ControlRefused
from runtime.images import BadImage, Grid, ImageSettings
from runtime.pixels.flat import ORIENTATION
from runtime.pixels.geometry import final_size
from runtime.pixels.positions import image_tokens, placeholders
from runtime.shipped import shapes_moe
from traces.errors import BadAnswer, Unreachable, UsageError, WorkbenchError
from traces.run import Run, whole_run
from traces.store import open_run

SIDE = 256  # pixels of the pictures of the pairs
SIZES = ((256, 256), (256, 512), (512, 384))  # (height, width) whose tokens are counted
GREY = (120, 130, 90)  # of those pictures
WORDS = 24  # tokens of an answer to a pair
NAME = "asked.json"
ENGINE = "pictures"  # of a run that is such an examination
MOST_RECORDED = 500  # kinds of requests by sizes and grids

Circle = tuple[str, int]  # colour, and cell of a 3 x 3 grid
COLOUR, PLACE = "What colour is the circle?", "Where is the red circle?"
# Two words, the picture of each, and the question.
PAIRS: tuple[tuple[str, str, tuple[Circle, Circle], str], ...] = (
    ("red", "blue", (("red", 4), ("blue", 4)), COLOUR),
    ("left", "right", (("red", 3), ("red", 5)), PLACE),
    ("top", "bottom", (("red", 1), ("red", 7)), PLACE),
)


def run_of_endpoint(url: str, model: Path, root: Path | None = None) -> Run:
    """A closed run with the answers. Unreachable; BadAnswer for a server that refuses or answers otherwise; CheckpointError."""
    asked = _asked(url, ImageSettings.read(model))
    with whole_run(engine=ENGINE, model=model.name, model_path=str(model), root=root, latest=False) as run:
        _write(run, asked)
    return run


def run_of_run(judged: Run, given: Path | None = None, root: Path | None = None) -> Run:
    """A closed run with what `judged` recorded and, while its server lives, what that answers and makes of pictures. All of it is held
    against the recipe of the folder that is given, or of the served one. BadAnswer, CheckpointError."""
    model = given or Path(judged.info.model_path)
    recipe, server = ImageSettings.read(model), live_server(judged)
    known = given is not None or model.samefile(shapes_moe())
    found: dict[str, Any] = {"of": judged.id, "why": server.why, "folder": str(model), "known": known}
    found["recorded"] = _recorded(judged, recipe)
    with whole_run(engine=ENGINE, model=judged.info.model, model_path=str(model), root=root, latest=False) as run:
        (run.path / FOLDER).mkdir()
        if server.url is not None:
            found |= _asked(server.url, recipe)
            try:
                _keep_tensors(judged, run, model)
            except (Unreachable, ControlRefused) as error:  # another user's server: its answers are there all the same
                found["unread"] = error.message
        _write(run, found)
    return run


def _write(run: Run, asked: dict[str, Any]) -> None:
    (run.path / FOLDER).mkdir(exist_ok=True)
    (run.path / FOLDER / NAME).write_text(json.dumps(asked))


def _asked(url: str, recipe: ImageSettings) -> dict[str, Any]:
    with Asker(url) as asker:
        pairs = [one for pair in PAIRS for one in _pair(asker, *pair)]
        counts = [
            {"height": h, "width": w, "expected": expected_tokens(h, w, recipe), "tokens": _tokens(asker, Image.new("RGB", (w, h), GREY))}
            for h, w in SIZES
        ]
        return {"pairs": pairs, "text": _tokens(asker, None), "counts": counts}


def _pair(asker: Asker, first: str, second: str, pictures: tuple[Circle, Circle], question: str) -> list[dict[str, Any]]:
    """Both answers. Where they are alike, `apart` is the second one's once more, under a salt that keeps it from what is cached: None
    where the server takes no salt."""
    contents = [about(_circle(*one), question) for one in pictures]
    answers = [asker.chat(content, WORDS).text for content in contents]
    pair: list[dict[str, Any]] = [
        {"want": first, "other": second, "answer": answers[0]}, {"want": second, "other": first, "answer": answers[1]},
    ]  # fmt: skip
    if answers[0] == answers[1]:
        try:
            pair[1]["apart"] = asker.chat(contents[1], WORDS, cache_salt=secrets.token_hex(8)).text
        except BadAnswer:
            pair[1]["apart"] = None
    return pair


def _circle(colour: str, cell: int) -> str:
    return picture_uri(draw(Scene((Item(cell, "circle", colour, "big"),), seed=0), SIDE))


def _tokens(asker: Asker, image: Image.Image | None) -> int:
    """Tokens of a prompt, as the server counts them. BadAnswer when it does not."""
    try:
        told = asker.chat("Hello." if image is None else about(picture_uri(image), "Hello."), 1)
    except BadAnswer as error:
        raise BadAnswer(error.message, error.hint if image is None else "does this model take pictures?") from error
    if told.prompt_tokens is None:
        raise BadAnswer("the server does not count tokens (usage.prompt_tokens)", "pictures are judged by the tokens that they cost")
    return told.prompt_tokens


def expected_tokens(height: int, width: int, recipe: ImageSettings) -> int:
    """Tokens that a picture of this size takes in the prompt, with the separators at the ends of pixtral's rows."""
    rows, columns = final_size(height, width, recipe)
    ends = (1, 2) if recipe.family == "pixtral" else (None, None)
    return len(placeholders((1, rows // recipe.patch, columns // recipe.patch), recipe, 0, *ends))


def _recorded(run: Run, recipe: ImageSettings) -> list[dict[str, Any]]:
    """Of the pictures that came with requests, by kind, the most frequent first: how many `requests`, (height, width) of each picture, its
    grid and the recipe's (None for a picture that it refuses), the image tokens of the prompt and those of its grids."""
    attrs = ", ".join(f"attrs->'$.\"moe.{name}\"' AS {name}" for name in ("image_sizes", "image_grids", "image_tokens"))
    query = f"SELECT {attrs}, count(*) AS requests FROM span WHERE name = 'image.preprocess' GROUP BY ALL ORDER BY requests DESC"
    try:
        with open_run(run) as store:
            rows = store.rows(query, limit=MOST_RECORDED)
    except WorkbenchError:
        return []  # a run without a store has recorded nothing
    found = []
    for row in rows:
        if row["image_grids"] is None:
            continue  # of a server that did not record them yet
        sides, cells = json.loads(row["image_sizes"]), json.loads(row["image_grids"])
        sizes = list(zip(sides[::2], sides[1::2], strict=True))
        grids = list(zip(cells[::3], cells[1::3], cells[2::3], strict=True))
        found.append({
            "requests": row["requests"], "sizes": sizes, "grids": grids, "wanted": [_grid(*size, recipe) for size in sizes],
            "tokens": json.loads(row["image_tokens"]), "features": sum(image_tokens(grid, recipe) for grid in grids),
        })  # fmt: skip
    return found


def _grid(height: int, width: int, recipe: ImageSettings) -> Grid | None:
    try:
        rows, columns = final_size(height, width, recipe)
    except BadImage:
        return None
    return 1, rows // recipe.patch, columns // recipe.patch


def _keep_tensors(judged: Run, run: Run, model: Path) -> None:
    """What the live server would hand to a rank for pictures of every kind, as dumps."""
    with ControlClient.for_run(judged) as control, tempfile.TemporaryDirectory(prefix="wb-pictures-") as scratch:
        for number, (name, data) in enumerate(pictures()):
            picture, dump = Path(scratch) / name, Path(scratch) / f"{number}.npz"
            picture.write_bytes(data)
            np.savez(dump, **_dump(control.prompt(about(data_uri(data, Path(name).suffix[1:]), "Hello."))))
            keep_probe(run.path / FOLDER / str(number), model, picture, dump)


def _dump(prompt: dict[str, Any]) -> dict[str, Any]:
    try:
        (image,) = prompt["images"]
        pixels = np.frombuffer(base64.b64decode(image["pixels"]), "<f4").reshape(-1, image["width"])
        positions = np.frombuffer(base64.b64decode(prompt["positions"]), "<i8").reshape(3, -1)
        ids = np.asarray(prompt["tokens"], np.int64)
    except (LookupError, TypeError, ValueError) as error:
        raise UsageError(f"the server does not say what it makes of a picture: {error!r}", "is it of this version?") from error
    return {"pixel_values": pixels, "image_grid_thw": np.array([image["grid"]]), "input_ids": ids, "position_ids": positions}


def pictures() -> Iterator[tuple[str, bytes]]:
    """Name and file of photograph-like pictures: a JPEG, a PNG of another ratio, one turned by its EXIF tag, one with transparency."""
    turned = Image.Exif()
    turned[ORIENTATION] = 6
    yield "plain.jpeg", jpeg(photograph(0))
    yield "oblong.png", png(photograph(1))
    yield "turned.jpeg", jpeg(photograph(2), exif=turned)
    clear = photograph(3)
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    yield "clear.png", png(clear)
