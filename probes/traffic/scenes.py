"""The picture world: one to four coloured shapes on a 3 x 3 grid, and how such a scene is drawn. Everything follows from seeds."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle", "star")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 215, 40),
    "orange": (245, 140, 25),
    "purple": (130, 50, 170),
    "pink": (250, 130, 190),
    "cyan": (50, 205, 215),
}
SIZES = ("big", "small")
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "centre", "right")
BACKGROUNDS = ((255, 255, 255), (232, 232, 228), (244, 238, 220), (214, 224, 232), (66, 66, 70), (18, 18, 24))

CANVAS = 96.0  # side of the drawing in canvas units; one grid cell is 32 x 32 units
RADIUS = {"big": (12.2, 14.0), "small": (7.0, 8.6)}  # canvas units
HELD_OUT_ONE_IN = 8


@dataclass(frozen=True, slots=True)
class Item:
    """One coloured shape; `cell` counts the nine grid cells in reading order from 0."""

    cell: int
    shape: str
    colour: str
    size: str

    @property
    def row(self) -> int:
        """Row of the grid, 0 at the top."""
        return self.cell // 3

    @property
    def column(self) -> int:
        """Column of the grid, 0 at the left."""
        return self.cell % 3

    @property
    def place(self) -> str:
        """Where the item is, in words: "top left"."""
        return place(self.cell)

    @property
    def name(self) -> str:
        """What the item is, in words: "red circle"."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True)
class Scene:
    """A layout of items in reading order; `seed` fixes background, jitter and tints of the drawing, never an answer."""

    items: tuple[Item, ...]
    seed: int

    @property
    def key(self) -> str:
        """The layout as text: equal for two scenes exactly when every question has the same answer in both."""
        return "; ".join(f"{item.size} {item.name} at {item.place}" for item in self.items)


def place(cell: int) -> str:
    """The words for one of the nine grid cells."""
    return f"{ROWS[cell // 3]} {COLUMNS[cell % 3]}"


def held_out(key: str) -> bool:
    """Whether a scene layout or an exact text prompt is kept away from training: a stable hash decides."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % HELD_OUT_ONE_IN == 0


def random_scene(rng: random.Random, items: int) -> Scene:
    """A scene of `items` shapes in distinct cells."""
    cells = sorted(rng.sample(range(9), items))
    return Scene(tuple(_random_item(rng, cell) for cell in cells), rng.getrandbits(32))


def _random_item(rng: random.Random, cell: int) -> Item:
    return Item(cell, rng.choice(SHAPES), rng.choice(tuple(COLOURS)), rng.choice(SIZES))


def draw(scene: Scene, size: int = 192) -> Image.Image:
    """The scene as a square RGB picture of `size` pixels a side."""
    rng = random.Random(scene.seed)
    picture = Image.new("RGB", (size, size), rng.choice(BACKGROUNDS))
    pen = ImageDraw.Draw(picture)
    scale = size / CANVAS
    for item in scene.items:
        reach = 3.0 if item.size == "big" else 5.0
        x = (16 + 32 * item.column + rng.uniform(-reach, reach)) * scale
        y = (16 + 32 * item.row + rng.uniform(-reach, reach)) * scale
        _draw_shape(pen, item.shape, x, y, rng.uniform(*RADIUS[item.size]) * scale, _tint(rng, COLOURS[item.colour]))
    return picture


def _tint(rng: random.Random, colour: tuple[int, int, int]) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(0, channel + rng.randint(-14, 14))) for channel in colour)
    return red, green, blue


def _draw_shape(pen: ImageDraw.ImageDraw, shape: str, x: float, y: float, radius: float, fill: tuple[int, int, int]) -> None:
    """Fill one shape around (x, y); all lengths in pixels."""
    if shape == "circle":
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
    elif shape == "square":
        side = 0.85 * radius
        pen.rectangle((x - side, y - side, x + side, y + side), fill=fill)
    elif shape == "triangle":
        pen.polygon(_corners(x, y, (radius,) * 3), fill=fill)
    else:
        pen.polygon(_corners(x, y, (radius, 0.42 * radius) * 5), fill=fill)


def _corners(x: float, y: float, radii: tuple[float, ...]) -> list[tuple[float, float]]:
    """The corners of a star-like polygon, the first one pointing up, at these distances (pixels) from (x, y)."""
    angles = [2 * math.pi * index / len(radii) - math.pi / 2 for index in range(len(radii))]
    return [(x + radius * math.cos(angle), y + radius * math.sin(angle)) for radius, angle in zip(radii, angles, strict=True)]
