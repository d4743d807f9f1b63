"""One request inside a rank: its tokens, its KV blocks, its place in the schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.constraint import Constraint
from runtime.messages import ImagePatches, Sampling, Stage, Submit
from runtime.prefix_digest import ImageMark, block_digests, image_digest, unpacked

# How much later a sequence of priority 1 stands than one of priority 0, submitted at the same moment: whoever has waited that much
# longer goes first, so that no priority is waited behind for ever.
PRIORITY_NS = 5_000_000_000


@dataclass(slots=True)
class ImageEmbeddings:
    """What the vision tower made of a sequence's images; kept, so that a preempted sequence need not encode again."""

    rows: Tensor  # [M] int64 prompt indices
    embeds: Tensor  # [M, H]
    deepstack: list[Tensor]  # per deepstack layer [M, H]

    def merged(self, more: ImageEmbeddings) -> ImageEmbeddings:
        """Both, in the order of their rows."""
        rows = torch.cat((self.rows, more.rows))
        order = rows.argsort()
        embeds = torch.cat((self.embeds, more.embeds))[order.to(self.embeds.device)]
        side = [torch.cat(pair)[order.to(self.embeds.device)] for pair in zip(self.deepstack, more.deepstack, strict=True)]
        return ImageEmbeddings(rows[order], embeds, side)


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens` is the prompt and the answer so far; the first `cached` of them are in the KV cache."""

    id: int
    trace_id: str
    tokens: list[int]
    prompt_length: int
    max_tokens: int
    stops: frozenset[int]
    sampling: Sampling
    mark: int  # end of the last stage that was reported, epoch ns
    due: int = 0  # place in the order of all sequences: when it was submitted, moved by its priority (ns)
    arrival: int = 0  # order of arrival at this rank
    positions: NDArray[np.int64] | None = None  # [3, prompt_length]; None: plain text
    images: list[ImagePatches] = field(default_factory=list)
    embeddings: ImageEmbeddings | None = None
    marks: list[ImageMark] = field(default_factory=list)  # of all images, encoded or not
    cached: int = 0
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)  # of its full blocks, as far as they were asked for
    salt: str = ""
    publishes: bool = True  # its full blocks are offered to others
    found: int = 0  # tokens that the prefix cache had when it was last admitted
    long: bool = False  # it shares the budget of long prompts: it is long, or had pictures to encode
    held: int = 0  # steps in which it waited for a block that another sequence was computing
    passed: int = 0  # sequences that were admitted before it although it stood in front
    slot: int = -1  # of its recurrent state while it runs; -1: it waits
    generator: torch.Generator | None = None
    constraint: Constraint | None = None
    preemptions: int = 0
    doing: str = "queue"  # queue | prefill | decode | preempted: the stage it is in
    _next_position: int = 0

    @classmethod
    def of(cls, submit: Submit) -> Sequence:
        positions = None
        if submit.positions:
            positions = np.frombuffer(submit.positions, dtype=np.int64).reshape(3, len(submit.tokens))
        sequence = cls(
            submit.id, submit.trace_id, list(submit.tokens), len(submit.tokens), submit.max_tokens,
            frozenset(submit.stops), submit.sampling, submit.submitted, submit.submitted + submit.priority * PRIORITY_NS,
            positions=positions, images=list(submit.images), digests=unpacked(submit.prefix), salt=submit.salt,
        )  # fmt: skip
        sequence.marks = [ImageMark(i.start, i.count, i.digest or image_digest(i.data, i.grid)) for i in submit.images]
        sequence._next_position = int(positions.max()) + 1 if positions is not None else len(submit.tokens)
        if submit.sampling.temperature > 0:
            sequence.generator = torch.Generator().manual_seed(submit.sampling.seed)
        return sequence

    @property
    def free(self) -> bool:
        """Its next token follows from the model's logits as they are."""
        return self.constraint is None and not self.sampling.adjusts and not self.must_go_on

    @property
    def must_go_on(self) -> bool:
        """Its next token may not end the answer."""
        return self.generated < self.sampling.min_tokens

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def remaining(self) -> int:
        """Tokens still to compute before the next one can be sampled."""
        return len(self.tokens) - self.cached

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def decoding(self) -> bool:
        """Only its newest token is to be computed."""
        return self.generated > 0 and self.remaining == 1

    def images_after(self, start: int) -> list[ImagePatches]:
        """Images still to encode of which a token at `start` or later stands in the prompt."""
        return [image for image in self.images if image.start + image.count > start]

    def patches_after(self, start: int) -> int:
        """Patches that the vision tower has to encode before the tokens from `start` on can be computed."""
        return sum(t * h * w for t, h, w in (image.grid for image in self.images_after(start)))

    def encoded(self, images: list[ImagePatches], embeddings: ImageEmbeddings) -> None:
        """Keeps what the vision tower made of `images`."""
        self.embeddings = embeddings if self.embeddings is None else self.embeddings.merged(embeddings)
        done = {image.start for image in images}
        self.images = [image for image in self.images if image.start not in done]

    def digests_of(self, blocks: int, block_size: int) -> list[bytes]:
        """The digests of at least its first `blocks` blocks, which must be full."""
        if len(self.digests) < blocks:
            self.digests = block_digests(self.tokens, block_size, self.marks, self.digests, self.salt)
        return self.digests

    def positions_of(self, start: int, length: int) -> NDArray[np.int64]:
        """[3, length]: after the prompt all three rows count on from the largest prompt position."""
        index = np.arange(start, start + length, dtype=np.int64)
        if self.positions is None:
            return np.broadcast_to(index, (3, length))
        shift = self._next_position - self.prompt_length
        rows = np.broadcast_to(index + shift, (3, length)).copy()
        inside = min(max(self.prompt_length - start, 0), length)
        rows[:, :inside] = self.positions[:, start : start + inside]
        return rows

    def stage(self, name: str, end: int, tokens: int, step: int, **attributes: int | bool) -> Stage:
        """The stage from the last mark to `end`; moves the mark."""
        start, self.mark = self.mark, max(end, self.mark)
        return Stage(self.id, name, start, self.mark, tokens, step, attributes)
