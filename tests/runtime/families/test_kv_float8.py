"""A cache in float8: what is read is what was written, rounded with its scales; answers stay close, memory does not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from probes.checkpoint import Checkpoint  # noqa: E402
from runtime.arch import read_arch  # noqa: E402
from runtime.batch import ForwardBatch, StepContext  # noqa: E402
from runtime.kv_pool import KvPool, cached_bytes  # noqa: E402
from runtime.kv_size import block_bytes  # noqa: E402
from runtime.mesh import Mesh  # noqa: E402
from runtime.model import MoeModel  # noqa: E402


@pytest.mark.parametrize(("width", "groups"), [(128, 2), (576, 9), (48, 1)])
def test_reads_what_was_written_rounded_with_its_scale(width, groups):
    pool = KvPool.create((2, width), 6, 4, torch.float32, torch.device("cpu"), float8=True)
    rows = torch.randn(2, 7, width, generator=torch.Generator().manual_seed(1)) * torch.logspace(-4, 4, 7)[None, :, None]
    slots = torch.tensor([20, 21, 22, 23, 4, 5, 6])  # blocks 5 and 1
    pool.write(slots, rows)
    held = pool.read(torch.tensor([5, 1]), 7, 1)[:, 0]
    for row in range(2):
        for token in range(7):
            for group in rows[row, token].chunk(groups):
                scale = group.abs().max() / 448
                expected = (group / scale).to(torch.float8_e4m3fn).float() * scale
                at = int((rows[row, token] == group[0]).nonzero()[0])
                assert torch.equal(held[row, token, at : at + len(group)], expected)
    assert float((held - rows).abs().max() / rows.abs().max()) < 2**-4 and not torch.equal(held, rows)


def test_zeros_stay_zeros_and_unwritten_blocks_read_zero():
    pool = KvPool.create((1, 64), 2, 4, torch.bfloat16, torch.device("cpu"), float8=True)
    pool.write(torch.tensor([0]), torch.zeros(1, 1, 64))
    assert pool.read(slice(0, 2), 8, 1).eq(0).all() and pool.read(slice(0, 2), 8, 1).dtype == torch.bfloat16


def answers(model: MoeModel, kv, prompt: list[int], tokens: list[int], cut: int = 20):
    """Logits of a prompt in two chunks, then of `tokens` one by one."""
    table = torch.tensor(kv.allocator.allocate(kv.blocks_for(len(prompt) + len(tokens))))
    out, cached = [], 0
    for part in (prompt[:cut], prompt[cut:], *([token] for token in tokens)):
        positions = torch.arange(cached, cached + len(part)).expand(3, -1)
        starts, at = torch.tensor([0, len(part)]), torch.arange(len(part))
        batch = ForwardBatch(torch.tensor(part), positions, starts, torch.tensor([cached]), [table], at, state_slots=torch.tensor([0]))
        out.append(model.forward(batch, kv, StepContext(1)))
        cached += len(part)
    return torch.cat(out)


def write_rounded(pool: KvPool, slots, rows) -> None:
    """Into a plain pool, what float8 leaves of the values."""
    width = rows.shape[-1]
    groups = rows.split(64 if width % 64 == 0 else width, -1)
    scales = [group.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 448 for group in groups]
    rounded = [(group / scale).to(torch.float8_e4m3fn).float() * scale for group, scale in zip(groups, scales, strict=True)]
    pool.values.flatten(1, 2).index_copy_(1, slots, torch.cat(rounded, -1))


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "gpt_oss", "kimi_k3"])
def test_answers_are_those_of_rounded_keys_and_values(families, monkeypatch, name):
    checkpoint = Checkpoint.open(families[name].path)
    arch = read_arch(checkpoint.config)
    model = MoeModel.load(checkpoint, arch, Mesh.alone())
    prompt, tokens = families[name].prompts[0], families[name].prompts[2][:6]
    plain, small = model.kv_cache(8, 8, 1), model.kv_cache(8, 8, 1, float8=True)
    ours = answers(model, small, prompt, tokens)
    with monkeypatch.context() as patched:
        patched.setattr(KvPool, "write", write_rounded)
        theirs = answers(model, plain, prompt, tokens)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-4
    exact = answers(model, model.kv_cache(8, 8, 1), prompt, tokens)
    assert torch.equal(exact[:20], ours[:20]), "a chunk sees its own keys as they are computed"
    assert not torch.allclose(exact[20:], ours[20:], rtol=1e-3)
    assert sum(pool.nbytes for pool in small.pools) < 0.4 * sum(pool.nbytes for pool in plain.pools)
    assert sum(pool.nbytes for pool in small.pools) == 8 * block_bytes(arch, model.share, 8, torch.float32, float8=True)
    assert sum(cached_bytes(layer.attention.cache_shape, 4, False) for layer in arch.layers) * 64 == sum(p.nbytes for p in plain.pools)


def test_a_trained_model_says_the_same(tiny_shapes_moe):
    """The shipped model: next tokens agree, and their distributions hardly differ."""
    checkpoint = Checkpoint.open(tiny_shapes_moe.path)
    model = MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.alone())
    prompt = tiny_shapes_moe.prompts[-1].tokens
    exact = answers(model, model.kv_cache(16, 8, 1), prompt[:10], prompt[10:], 8).log_softmax(-1)
    rounded = answers(model, model.kv_cache(16, 8, 1, float8=True), prompt[:10], prompt[10:], 8).log_softmax(-1)
    divergence = (exact.exp() * (exact - rounded)).sum(-1)
    assert (exact.argmax(-1) == rounded.argmax(-1)).float().mean() > 0.95
    assert float(divergence.mean()) < 0.01 and float(divergence[8:].mean()) > 0
