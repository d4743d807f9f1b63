"""Tier 5: pictures. One made-up picture through our tower and model, against the reference's, on the same patches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from runtime.images import ImageSettings, mrope_positions, preprocess
from runtime.local import LocalSequence
from runtime.taps.compare import KL_LIMIT, TOP1_LIMIT, answers
from runtime.validation.document import Check
from runtime.validation.subject import Subject, apart, probe_ids
from traces.errors import CheckpointError

WORDS = 5  # random tokens before and behind the picture
SIDE = 96  # pixels


def examine_multimodal(subject: Subject) -> list[Check]:
    """Skipped, with the reason, where there is no tower, no reference, or no preprocessor config."""
    arch = subject.model.arch
    if arch.vision is None:
        towers = [skipped.why for skipped in arch.skipped if "vis" in skipped.prefix]
        return [Check("picture", "skipped", f"its pictures are not served: {towers[0]}" if towers else "the model reads no pictures")]
    if subject.outside is None:
        return [Check("picture", "skipped", "no reference that reads pictures; give --reference transformers")]
    try:
        settings = ImageSettings.read(Path(subject.model.checkpoint.path))
    except CheckpointError as error:
        return [Check("picture", "skipped", error.message)]
    patches, grid = preprocess(_picture(), settings)
    tokens = arch.tokens
    if tokens.image is None:
        return [Check("picture", "skipped", "the config names no image token")]
    special = {tokens.image, tokens.video, tokens.vision_start, tokens.vision_end}
    words = [token for token in probe_ids(arch.vocab, 7, 8 * WORDS) if token not in special][: 2 * WORDS]
    count = len(patches) // settings.merge**2
    around = [[] if token is None else [token] for token in (tokens.vision_start, tokens.vision_end)]
    ids = [*words[:WORDS], *around[0], *[tokens.image] * count, *around[1], *words[WORDS:]]
    positions, more = None, {}
    if arch.spatial_positions:  # the reference makes its own, and asks which tokens stand for pictures
        positions = torch.from_numpy(mrope_positions(np.array(ids), [grid], tokens.image, settings.merge))
        more = {"mm_token_type_ids": (torch.tensor([ids]) == tokens.image).int()}
    ours = _ours(subject, ids, positions, torch.from_numpy(patches), grid)
    with torch.no_grad():
        theirs = subject.outside(
            input_ids=torch.tensor([ids]), pixel_values=torch.from_numpy(patches), image_grid_thw=torch.tensor([grid]), **more
        ).logits[0]
    return [_judged(subject, theirs, ours, count)]


def _judged(subject: Subject, theirs: torch.Tensor, ours: torch.Tensor, count: int) -> Check:
    rows = apart(theirs, ours)
    typical, worst = float(rows.median()), float(rows.max())
    kl, _, top1, _ = answers(theirs, ours)
    told = f"{count} image tokens: logits {typical:.1e} from the reference's (largest {worst:.1e}), KL {kl:.2g}, top-1 agreement {top1:.3g}"
    good = typical <= subject.limit and kl <= KL_LIMIT and top1 >= TOP1_LIMIT
    return Check("picture", "pass" if good else "fail", told, typical, subject.limit)


def _ours(
    subject: Subject, ids: list[int], positions: torch.Tensor | None, patches: torch.Tensor, grid: tuple[int, int, int]
) -> torch.Tensor:
    model = subject.model
    embeds, deepstack = model.encode_images(patches, [grid])
    rows = torch.tensor([i for i, token in enumerate(ids) if token == model.arch.tokens.image])
    sequence = LocalSequence(model, len(ids), subject.float8)
    return sequence.feed(ids, positions=positions, image_rows=rows, image_embeds=embeds, deepstack=deepstack).cpu()


def _picture() -> Image.Image:
    """Two gradients and a square: nothing in it is symmetric, so that neither swapped axes nor colours pass."""
    rows, columns = np.indices((SIDE, SIDE + SIDE // 3))
    pixels = np.stack((rows * 2 % 256, columns * 2 % 256, (rows + 3 * columns) % 256), -1).astype(np.uint8)
    pixels[10:30, 50:90] = (250, 20, 5)
    return Image.fromarray(pixels)
