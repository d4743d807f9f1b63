"""Resizing as engines do it that stay in torch: on floats, with or without antialias. Within a level of PIL where both antialias."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray


def torch_resize(
    pixels: NDArray[np.uint8], rows: int, columns: int, mode: str, antialias: bool, rounded: bool = True
) -> NDArray[np.float32]:
    """[h, w, 3] bytes -> [rows, columns, 3] levels, 0 to 255. `mode`: bicubic, bilinear, area or nearest."""
    planes = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)[None].float()
    extra = {"antialias": antialias} if mode in ("bicubic", "bilinear") else {}
    out = F.interpolate(planes, (rows, columns), mode=mode, **extra)[0].permute(1, 2, 0).clamp(0, 255)
    made: NDArray[np.float32] = (out.round() if rounded else out).contiguous().numpy()
    return made
