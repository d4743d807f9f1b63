"""Thresholds of tail.expert-imbalance, all of them, each with its source.

"Reference" is reference/causes_latency_network_hang_load.md, section 2: its three tests, with its values. "Our choice" has no source
but reason.
"""

from __future__ import annotations

from typing import Final

ID: Final = "tail.expert-imbalance"

# Reference: share of steps whose max/mean exceeds the 99th percentile of the null, by layer (1 % by chance). Each step is weighed by
# its rows, so that many small decode steps do not outvote the prompts in which the time goes.
ABOVE_NULL: Final = 0.20

# Reference: cost of the excess rows, as a share of the step.
IMPACT_FAIL: Final = 0.05

# Reference: share of layers in which the rank that is last has the most rows (25 % by chance on 4 ranks), weighed by their excess.
LAST_IS_HOTTEST: Final = 0.60

# Our choice, between natural skew and a fault: worth a word if a known better placement would save this much of the step.
IMPACT_WARN: Final = 0.03

# Our choice: of an excess that costs IMPACT_FAIL in all, the part of the step that a known better placement would save for the
# placement to be at fault; the rest is chance in single batches, which no placement cures. Excess that persists over seconds although
# no placement cures it (single experts that are too hot) is a fault from IMPACT_FAIL on.
AVOIDABLE: Final = 0.035

# Our choice: part of the persistent excess from which on moving experts is the cure; below it single experts are too hot for any one rank.
RECOVERABLE: Final = 0.5

# Our choice: ranks within this factor of the most rows are hottest too; being last among equals says nothing.
NEARLY: Final = 0.95

# DESIGN section 5 and the reference: fewer detailed steps decide nothing.
LEAST_STEPS: Final = 30

# Our choice: part of the excess from which on a further rank, or a layer, is named beside the worst.
NAMED_RANK: Final = 0.15
NAMED_LAYER: Final = 0.05

# Our choice: share of padding rows above which they are named as the origin.
PADDING: Final = 0.10
