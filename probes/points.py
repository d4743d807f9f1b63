"""Every point at which a run of ours is observed, named once.

Writers (runtime), readers (views, playbooks, screens) and the documentation take the names from here, so that what is observed
can be read in one place. Each table maps a name to its meaning.
"""

from __future__ import annotations

from typing import Final

SEGMENTS: Final[dict[str, str]] = {
    "attention": "attention of the layer with its norm and residual",
    "router": "router scores, top-k and the permutation of rows by destination rank",
    "exchange": "exchange of row counts, a tiny collective before the dispatch",
    "dispatch": "all-to-all that brings rows to the ranks of their experts",
    "experts": "expert computation on the rows received",
    "combine": "all-to-all that brings the results back, and the weighted sum",
}
"""Contiguous parts of one layer, in order: table `layer`, `rollup.segment`."""

PHASES: Final[dict[str, str]] = {
    "start": "process start and imports",
    "plan": "headers read, placement and slices planned",
    "load": "weights read into their targets",
    "kv_cache": "KV block pool allocated",
    "warmup": "first steps, before the server accepts requests",
    "serve": "serving",
    "switch": "a new expert placement is read in and switched to",
    "stop": "shutting down",
}
"""Phases of a rank's life: column `memory.phase` and events of kind `phase`."""

ROOT_SPAN: Final = "request"
CLIENT_SPAN: Final = "client.request"

STAGES: Final[dict[str, str]] = {
    "queue": "waiting for admission",
    "tokenize": "chat template and tokenizer",
    "image.preprocess": "decode, orient, resize, normalise, cut into patches",
    "image.encode": "vision encoder",
    "prefill": "prompt tokens computed, one span a chunk",
    "decode": "output tokens computed",
    "preempted": "put back to waiting by the scheduler",
    "detokenize": "tokens to text",
    "send": "text written to the client",
}
"""Stages of a request: child spans of the root span `request`."""

OPS: Final[dict[str, str]] = {
    "header": "step header: an all-gather by which the ranks agree on the step",
    "exchange": "row counts of one layer",
    "dispatch": "rows to the experts",
    "combine": "results back",
}
"""Collectives of a step: column `collective.op`."""

TAPS: Final[dict[str, str]] = {
    "embed": "token embeddings, after image rows have been put in",
    "attention": "output of a layer's attention",
    "router": "router logits of a layer",
    "experts": "combined expert output of a layer",
    "layer": "residual stream after a layer",
    "final": "after the last norm",
    "logits": "logits of the rows asked for",
    "image.oriented": "a decoded picture, turned as its EXIF tag says",
    "image.flat": "upright 8-bit RGB, transparency laid on white",
    "image.resized": "stretched, cropped or padded to the tower's size, bytes",
    "image.rescaled": "bytes times the rescale factor",
    "image.normalised": "mean taken away, divided by the deviation",
    "image.pixels": "normalised patches",
    "image.embeds": "output of the vision encoder",
}
"""Named tensors: column `tap.point`."""

ROUTED_ROW: Final = "routed_row"

EVENTS: Final[dict[str, str]] = {
    ROUTED_ROW: "what routing asks of the exchange: bytes of a row (`row_bytes`) and experts of a token (`top_k`); once, when loaded",
    "phase": "a phase of a process ended; dur is its length",
    "gc": "a garbage collection of Python; dur is the pause",
    "gc_short": "collections below the recording threshold since the last such event; dur is their sum",
    "rebalance": "an expert placement came into force",
    "preemption": "sequences were preempted (requests), each because another needed a KV block (needed_by)",
    "refusal": "requests were answered 429 since the last such event, because the server was full",
    "compile": "something was compiled",
    "config": "a setting, at start or changed",
    "oom": "an allocation failed",
    "drop": "rows were lost and counted",
    "death": "a process died",
    "window": "a window of full detail was asked for",
    "profile": "a torch.profiler window was closed; dur is the time in which the rank stood still for it",
    "traffic": "a run of traffic by our client; dur is its length",
}
"""Kinds of rows in table `event`."""
