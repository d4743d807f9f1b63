"""Decode and prefill against transformers' generate: same weights, fp32, same threads, interleaved pairs in one process.

    python tests/benchmarks/runtime_bench.py [--threads 1] [--pairs 7] [--only decode1,decode8,prefill512] [--model FOLDER]

Prints tokens per CPU second of both and their ratio. On a shared machine wall time measures the neighbours, so CPU time decides, and of
every token's repeated measurements the quietest is kept. The default model: 64M parameters, 8 layers, hidden 512, 16 experts, top-4, as
in the measurements by which the targets in DESIGN.md section 9 were set.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
import transformers

from probes.checkpoint import Checkpoint
from runtime.arch import read_arch
from runtime.batch import ForwardBatch, StepContext
from runtime.load_window import ExpertCounter
from runtime.mesh import Mesh
from runtime.model import MoeModel

CONFIG = {
    "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256,
    "norm_topk_prob": True, "max_position_embeddings": 4096,
}  # fmt: skip
PROMPT, NEW = 32, 24


Tick = tuple[float, float]  # CPU and wall seconds


def tick() -> Tick:
    return time.process_time(), time.perf_counter()


@dataclass
class Ours:
    """Greedy decoding over the paged cache, one forward a token."""

    model: MoeModel
    step: int = 0

    def __post_init__(self) -> None:
        arch = self.model.arch
        self.counter = ExpertCounter(self.model.placement, arch.moe_layers, arch.moe.experts, 0)

    def forward(self, tokens: torch.Tensor, cached: int, tables: list[torch.Tensor], kv) -> torch.Tensor:
        """tokens [B, n] at positions cached .. -> logits of the last [B, V]."""
        count, n = tokens.shape
        self.step += 1
        starts = torch.arange(count + 1) * n
        positions = torch.arange(cached, cached + n).repeat(count).expand(3, -1)
        batch = ForwardBatch(tokens.flatten(), positions, starts, torch.full((count,), cached), tables, starts[1:] - 1)
        self.counter.begin(self.step, count * n)
        return self.model.forward(batch, kv, StepContext(self.step, counter=self.counter))

    def generate(self, ids: torch.Tensor, new: int) -> tuple[torch.Tensor, list[Tick]]:
        """Tokens, and a tick after each."""
        kv = self.model.kv_cache(256, 16)
        tables = [torch.tensor(kv.allocator.allocate(kv.blocks_for(ids.shape[1] + new))) for _ in ids]
        out, ticks, cached, feed = [ids], [], 0, ids
        for _ in range(new):
            logits = self.forward(feed, cached, tables, kv)
            cached += feed.shape[1]
            feed = logits.argmax(-1, keepdim=True)
            out.append(feed)
            ticks.append(tick())
        return torch.cat(out, 1), ticks


def build(folder: Path) -> tuple[Ours, transformers.PreTrainedModel]:
    config = json.loads((folder / "config.json").read_text())
    kind = transformers.AutoModelForImageTextToText if "vision_config" in config else transformers.AutoModelForCausalLM
    theirs = kind.from_pretrained(folder, dtype=torch.float32).eval()
    checkpoint = Checkpoint.open(folder)
    return Ours(MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.alone())), theirs


def their_generate(model: transformers.PreTrainedModel, ids: torch.Tensor, new: int) -> tuple[torch.Tensor, list[Tick]]:
    ticks: list[Tick] = []

    def after_token(ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        ticks.append(tick())
        return torch.zeros(ids.shape[0], dtype=torch.bool)

    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False, eos_token_id=None,
        pad_token_id=0, stopping_criteria=transformers.StoppingCriteriaList([after_token]),
    )  # fmt: skip
    return out, ticks


def measure_decode(ours: Ours, theirs: transformers.PreTrainedModel, batch: int, pairs: int) -> dict[str, float]:
    """Per token index the quietest of all repetitions; their sum, without the first token (the prefill)."""
    ids = torch.randint(0, ours.model.arch.vocab, (batch, PROMPT))
    runs = {"ours": lambda: ours.generate(ids, NEW), "theirs": lambda: their_generate(theirs, ids, NEW)}
    quietest = {name: [(1e9, 1e9)] * (NEW - 1) for name in runs}
    answers = {}
    for _ in range(pairs):
        for name, run in runs.items():
            answers[name], ticks = run()
            spent = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(ticks)]
            quietest[name] = [(min(a[0], b[0]), min(a[1], b[1])) for a, b in zip(quietest[name], spent, strict=True)]
    assert torch.equal(answers["ours"], answers["theirs"]), "the two do not answer alike"
    sums = {name: (sum(t[0] for t in tokens), sum(t[1] for t in tokens)) for name, tokens in quietest.items()}
    return summary(sums, batch * (NEW - 1))


@torch.inference_mode()
def measure_prefill(ours: Ours, theirs: transformers.PreTrainedModel, length: int, pairs: int) -> dict[str, float]:
    ids = torch.randint(0, ours.model.arch.vocab, (1, length))
    kv = ours.model.kv_cache(256, 16)
    table = [torch.arange(kv.blocks_for(length))]
    runs = {"ours": lambda: ours.forward(ids, 0, table, kv), "theirs": lambda: theirs(ids, use_cache=True, logits_to_keep=1)}
    best = dict.fromkeys(runs, (1e9, 1e9))
    for _ in range(pairs):
        for name, run in runs.items():
            before = tick()
            run()
            after = tick()
            best[name] = (min(best[name][0], after[0] - before[0]), min(best[name][1], after[1] - before[1]))
    return summary(best, length)


def summary(best: dict[str, tuple[float, float]], tokens: int) -> dict[str, float]:
    ours, theirs = best["ours"], best["theirs"]
    return {
        "ours_tokens_per_cpu_s": round(tokens / ours[0], 1),
        "theirs_tokens_per_cpu_s": round(tokens / theirs[0], 1),
        "ratio_cpu": round(theirs[0] / ours[0], 3),
        "ratio_wall": round(theirs[1] / ours[1], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", default="decode1,decode8,prefill512")
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            torch.manual_seed(0)
            transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**CONFIG)).save_pretrained(folder)
        ours, theirs = build(options.model or Path(folder))
        for name in options.only.split(","):
            if name.startswith("decode"):
                result = measure_decode(ours, theirs, int(name.removeprefix("decode")), options.pairs)
            else:
                result = measure_prefill(ours, theirs, int(name.removeprefix("prefill")), options.pairs)
            print(json.dumps({"what": name, "threads": options.threads, **result}), flush=True)


if __name__ == "__main__":
    main()
