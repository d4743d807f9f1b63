"""In bfloat16 every family is as far from its float32 reference as the reference in bfloat16 is, give or take."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from probes.checkpoint import Checkpoint  # noqa: E402
from runtime.arch import read_arch  # noqa: E402
from runtime.batch import ForwardBatch, StepContext  # noqa: E402
from runtime.mesh import Mesh  # noqa: E402
from runtime.model import MoeModel  # noqa: E402

NAMES = ("mixtral", "deepseek_v3", "gpt_oss", "kimi_linear", "glm4_moe", "minimax_m2")


LONG = (0, 4)  # prompts; others hold the padding token, whose logits are zero


def logits(family, dtype):
    """Of the long prompts, one behind the other."""
    checkpoint = Checkpoint.open(family.path)
    model = MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.alone(), dtype=dtype)
    return torch.cat([in_parts(model, family.prompts[n]) for n in LONG])


def in_parts(model, tokens):
    """Logits of a prompt in two chunks and one token."""
    kv = model.kv_cache(4, 16, 1)
    table, out, cached = torch.tensor(kv.allocator.allocate(4)), [], 0
    for part in (tokens[:9], tokens[9:-1], tokens[-1:]):
        positions, at = torch.arange(cached, cached + len(part)).expand(3, -1), torch.arange(len(part))
        starts = torch.tensor([0, len(part)])
        batch = ForwardBatch(torch.tensor(part), positions, starts, torch.tensor([cached]), [table], at, state_slots=torch.tensor([0]))
        out.append(model.forward(batch, kv, StepContext(1)))
        cached += len(part)
    return torch.cat(out)


def middle(ours, exact) -> float:
    """Median over tokens of the relative error: a token whose experts flip does not decide."""
    return float(((ours.float() - exact).norm(dim=1) / exact.norm(dim=1)).median())


@pytest.mark.parametrize("name", NAMES)
def test_no_further_from_float32_than_transformers(families, name):
    family = families[name]
    reference = transformers.AutoModelForCausalLM.from_pretrained(family.path, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        theirs = torch.cat([reference(torch.tensor([family.prompts[n]])).logits[0] for n in LONG])
    ours, exact = logits(family, torch.bfloat16), torch.cat([family.logits[n] for n in LONG])
    assert ours.dtype == torch.bfloat16
    assert 1e-3 < middle(ours, exact) < 1.6 * middle(theirs, exact)


@pytest.mark.parametrize("name", ["deepseek_v3_fp8", "gpt_oss_mxfp4", "kimi_k25", "kimi_k3"])
def test_quantised_models_run_in_bfloat16(families, name):
    ours = logits(families[name], torch.bfloat16)
    assert ours.isfinite().all() and 1e-3 < middle(ours, torch.cat([families[name].logits[n] for n in LONG])) < 0.5
