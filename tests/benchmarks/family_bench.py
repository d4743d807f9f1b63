"""Decode and prefill of every family against transformers' generate: same weights, fp32, one process, runs in turn.

    python tests/benchmarks/family_bench.py [--threads 1] [--pairs 5] [--families mixtral,gpt_oss] [--only decode1,decode8,prefill512]

A random model of 63 to 66 million parameters a family, as transformers makes and saves it. A pair is one run of ours and one of theirs,
one after the other, so that a busy machine slows both; the table gives the median of the pairs' ratios (above 1: ours is faster) and
their range, in CPU seconds and in wall seconds. Decoding leaves out the first token, which is the prefill. Both must draw the
same tokens, except where two of them are a near-tie.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from runtime_bench import NEW, PROMPT, Ours, Tick, build, their_generate, tick

from runtime.batch import ForwardBatch, StepContext

COMMON: dict[str, Any] = {
    "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 4096, "num_experts_per_tok": 4, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
ROUTED = {"moe_intermediate_size": 256, "norm_topk_prob": True}
SHARED = {"n_routed_experts": 16, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
LATENT = {
    "num_key_value_heads": 8, "kv_lora_rank": 128, "q_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64,
}  # fmt: skip
KINDS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("Qwen3Moe", {**COMMON, **ROUTED, "head_dim": 64, "num_experts": 16}),
    "mixtral": ("Mixtral", {**COMMON, "intermediate_size": 256, "num_local_experts": 16, "sliding_window": None}),
    "deepseek_v3": ("DeepseekV3", {**COMMON, **ROUTED, **SHARED, **LATENT}),
    "gpt_oss": ("GptOss", {**COMMON, "intermediate_size": 256, "head_dim": 64, "num_local_experts": 16, "sliding_window": 128}),
    "glm4_moe": ("Glm4Moe", {**COMMON, **ROUTED, **SHARED, "head_dim": 64, "use_qk_norm": True}),
    "minimax_m2": ("MiniMaxM2", {**COMMON, "intermediate_size": 256, "head_dim": 64, "rotary_dim": 32, "num_local_experts": 16}),
    "kimi_linear": (
        "KimiLinear",
        {**COMMON, **ROUTED, **LATENT, "num_experts": 16, "num_shared_experts": 1, "layer_types": 2 * KINDS, "linear_head_dim": 64,
         "linear_num_heads": 8},
    ),
}  # fmt: skip
TIE = 1e-3  # between the logits of two tokens: where they are closer, rounding may choose (DESIGN.md, section 4)
Run = Callable[[], tuple[Tick, torch.Tensor]]


class OursWithStates(Ours):
    """With a recurrent state a sequence, where the family has them."""

    def forward(self, tokens: torch.Tensor, cached: int, tables: list[torch.Tensor], kv: Any) -> torch.Tensor:
        count, n = tokens.shape
        self.step += 1
        starts, positions = torch.arange(count + 1) * n, torch.arange(cached, cached + n).repeat(count).expand(3, -1)
        slots = torch.arange(count)
        batch = ForwardBatch(
            tokens.flatten(), positions, starts, torch.full((count,), cached), tables, starts[1:] - 1, state_slots=slots
        )
        self.counter.begin(self.step, count * n)
        return self.model.forward(batch, kv, StepContext(self.step, counter=self.counter))


def made(name: str, folder: Path) -> tuple[OursWithStates, Any, int]:
    """Both sides, and the number of parameters."""
    kind, config = FAMILIES[name]
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**config)).float()
    model.save_pretrained(folder)
    ours, theirs = build(folder)
    return OursWithStates(ours.model), theirs, sum(tensor.numel() for tensor in model.parameters())


def decode(ours: OursWithStates, theirs: Any, batch: int) -> dict[str, Run]:
    """Greedy; CPU and wall seconds from the first token to the last, and the tokens."""
    ids = torch.randint(3, ours.model.arch.vocab, (batch, PROMPT))

    def spent(answered: tuple[torch.Tensor, list[Tick]]) -> tuple[Tick, torch.Tensor]:
        tokens, ticks = answered
        return (ticks[-1][0] - ticks[0][0], ticks[-1][1] - ticks[0][1]), tokens

    return {"ours": lambda: spent(ours.generate(ids, NEW)), "theirs": lambda: spent(their_generate(theirs, ids, NEW))}


def prefill(ours: OursWithStates, theirs: Any, length: int) -> dict[str, Run]:
    """One pass over a prompt, and the token that it draws."""
    ids = torch.randint(3, ours.model.arch.vocab, (1, length))
    kv = ours.model.kv_cache(256, 16)
    table = [torch.arange(kv.blocks_for(length))]

    @torch.inference_mode()
    def timed(run: Callable[[], torch.Tensor]) -> tuple[Tick, torch.Tensor]:
        before = tick()
        logits = run()
        after = tick()
        return (after[0] - before[0], after[1] - before[1]), torch.cat((ids, logits.argmax(-1).view(1, 1)), 1)

    return {
        "ours": lambda: timed(lambda: ours.forward(ids, 0, table, kv)),
        "theirs": lambda: timed(lambda: theirs(ids, use_cache=True, logits_to_keep=1).logits),
    }


@torch.inference_mode()
def alike(theirs: Any, ours: torch.Tensor, other: torch.Tensor) -> bool:
    """Tokens [B, n] of both sides are the same up to a near-tie: where a row parts, transformers' logits of the two differ by less than
    TIE. What follows is another text of the same length, and as much work."""
    for row, against in zip(ours, other, strict=True):
        parts = (row != against).nonzero()
        if not len(parts):
            continue
        at = int(parts[0, 0])
        logits = theirs(against[None, :at], logits_to_keep=1).logits[0, -1]
        if abs(float(logits[row[at]] - logits[against[at]])) > TIE:
            return False
    return True


def measured(theirs: Any, runs: dict[str, Run], pairs: int) -> dict[str, Any]:
    """Median, least and most of the pairs' ratios theirs / ours, after one pair that warms up. ValueError where answers differ."""
    for_cpu, for_wall = [], []
    for turn in range(pairs + 1):
        order = list(runs) if turn % 2 else list(runs)[::-1]
        done = {name: runs[name]() for name in order}
        if not turn and not alike(theirs, done["ours"][1], done["theirs"][1]):
            raise ValueError("the two do not answer alike")
        if turn:
            for_cpu.append(done["theirs"][0][0] / done["ours"][0][0])
            for_wall.append(done["theirs"][0][1] / done["ours"][0][1])
    return {
        "ratio_cpu": round(statistics.median(for_cpu), 2), "range_cpu": [round(min(for_cpu), 2), round(max(for_cpu), 2)],
        "ratio_wall": round(statistics.median(for_wall), 2), "pairs": pairs,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--only", default="decode1,decode8,prefill512")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in options.families.split(","):
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs, parameters = made(name, Path(folder))
            for what in options.only.split(","):
                if what.startswith("decode"):
                    runs = decode(ours, theirs, int(what.removeprefix("decode")))
                else:
                    runs = prefill(ours, theirs, int(what.removeprefix("prefill")))
                said = {"family": name, "millions": round(parameters / 1e6), "what": what, "threads": options.threads}
                print(json.dumps({**said, **measured(theirs, runs, options.pairs)}), flush=True)


if __name__ == "__main__":
    main()
