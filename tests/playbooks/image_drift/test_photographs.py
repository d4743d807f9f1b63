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
PARTS = {"whole": (0.0, 0.0, 1.0, 1.0), "tall": (0.3, 0.0, 0.7, 1.0), "wide": (0.0, 0.3, 1.0, 0.75)}  # left, top, right, bottom: shares
FOLDER = os.environ.get("WORKBENCH_PHOTOGRAPHS", "")


def photographs(part: str) -> list[Image.Image]:
    if not FOLDER:
        pytest.skip("no photographs: run scripts/fetch_photographs.sh and set WORKBENCH_PHOTOGRAPHS")
    found = []
    for name in NAMES:
        with Image.open(Path(FOLDER) / name) as image:
            left, top, right, bottom = PARTS[part]
            width, height = image.size
            found.append(image.convert("RGB").crop((int(left * width), int(top * height), int(right * width), int(bottom * height))))
    return found


def missed(one: PictureDrill, part: str, root: Path) -> list[str]:
    """What was said of each photograph, where it is not what was done to it."""
    taken = photographs(part)
    wrong = []
    for number, name in enumerate(NAMES):
        for strength in (0, 1):
            drill = replace(one, take=lambda n, first=number: taken[(first + n % 4) % len(taken)])
            found = diagnose(drill.start(Dose(strength, 0), root, lambda said: None), "image-drift", argv=())
            named = serious(found)
            said = named[0].id if named else found.verdict
            if said != one.expected:
                wrong.append(f"{name} {part} {strength}: {said}")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("one", _ALL, ids=lambda one: str(one.id))
def test_every_fault_is_named_on_every_photograph(one: PictureDrill, part: str, tmp_path: Path) -> None:
    assert not missed(one, part, tmp_path)
