"""Image patches of a sequence to embeddings, through the model's vision tower."""

from __future__ import annotations

import numpy as np
import torch

from runtime.messages import ImagePatches
from runtime.model import MoeModel
from runtime.sequence import ImageEmbeddings


def encode_images(model: MoeModel, images: list[ImagePatches]) -> ImageEmbeddings:
    """All images of one sequence together: a sequence's embeddings must not depend on what else is in the batch."""
    patches = torch.from_numpy(np.concatenate([np.frombuffer(i.data, dtype=np.float32).reshape(-1, i.width) for i in images]))
    embeds, deepstack = model.encode_images(patches.to(model.device), [image.grid for image in images])
    rows = torch.cat([torch.arange(i.start, i.start + i.count, dtype=torch.int64) for i in images])
    return ImageEmbeddings(rows, embeds, list(deepstack))
