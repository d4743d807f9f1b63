"""The causes of image-drift. Of causes that explain a drift equally well, the first here is named, and the others with it."""

from __future__ import annotations

from playbooks.check import Check
from playbooks.image_drift import (
    channel_order,
    cross_request_cache,
    decoder,
    dtype_path,
    exif,
    load_mode,
    mrope,
    normalize_constants,
    patch_order,
    pixel_budget,
    placeholder_mismatch,
    recipe,
    recorded_grids,
    rescale,
    resize_filter,
    resize_geometry,
    sight,
)
from playbooks.image_drift.cause import Cause
from playbooks.image_drift.verdict import check_of, unexplained

CAUSES: tuple[Cause, ...] = (
    rescale.CAUSE,
    normalize_constants.CAUSE,
    exif.CAUSE,
    load_mode.CAUSE,
    channel_order.CAUSE,
    patch_order.CAUSE,
    dtype_path.CAUSE,
    pixel_budget.CAUSE,
    resize_filter.CAUSE,
    resize_geometry.CAUSE,
    decoder.CAUSE,
    cross_request_cache.CAUSE,
)
CHECKS: tuple[Check, ...] = (
    recipe.CHECK,
    recorded_grids.CHECK,
    sight.CHECK,
    placeholder_mismatch.CHECK,
    mrope.CHECK,
    *(check_of(cause, CAUSES, 10 + place) for place, cause in enumerate(CAUSES)),
    unexplained(CAUSES),
)
