"""Blocks in one run or scattered, sequences alone or padded together: the same logits. And the allocator's books."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from probes.checkpoint import Checkpoint  # noqa: E402
from runtime.arch import read_arch  # noqa: E402
from runtime.batch import ForwardBatch, StepContext  # noqa: E402
from runtime.kv import BlockAllocator  # noqa: E402
from runtime.layers import attention_plan  # noqa: E402
from runtime.mesh import Mesh  # noqa: E402
from runtime.model import MoeModel  # noqa: E402

LENGTHS = [3, 50, 17, 90, 33]


def model_of(tiny, dtype=torch.float32) -> MoeModel:
    checkpoint = Checkpoint.open(tiny.path)
    return MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.alone(), dtype=dtype)


@pytest.fixture(scope="module")
def model(tiny_qwen3_moe):
    return model_of(tiny_qwen3_moe)


def forward(model, kv, tables, cached, lengths, tokens):
    count = sum(lengths)
    positions = torch.cat([torch.arange(c, c + n) for c, n in zip(cached, lengths, strict=True)])
    starts = torch.tensor([0, *lengths]).cumsum(0)
    batch = ForwardBatch(tokens, positions.expand(3, -1), starts, torch.tensor(cached), tables, torch.arange(count))
    return model.forward(batch, kv, StepContext(1))


def decode_logits(model, shuffle: bool, prefill_too: bool = False):
    """Prefills all sequences, then one decode step of all (with a late chunk of several tokens between them, if asked)."""
    generator = torch.Generator().manual_seed(3)
    kv = model.kv_cache(64, 16)
    tables = []
    for n in LENGTHS:
        blocks = kv.allocator.allocate(kv.blocks_for(n + 8))
        random.Random(n).shuffle(blocks) if shuffle else None
        tables.append(torch.tensor(blocks))
    forward(model, kv, tables, [0] * len(LENGTHS), LENGTHS, torch.randint(0, 300, (sum(LENGTHS),), generator=generator))
    lengths = [1, 1, 6, 1, 1] if prefill_too else [1] * len(LENGTHS)
    tokens = torch.randint(0, 300, (12,), generator=generator)[: sum(lengths)]
    return forward(model, kv, tables, LENGTHS, lengths, tokens)


@pytest.mark.parametrize("prefill_too", [False, True])
@pytest.mark.parametrize("alone_from", [0, 10_000, 1 << 30])
@pytest.mark.parametrize("shuffle", [False, True])
def test_grouping_does_not_change_logits(model, monkeypatch, shuffle, alone_from, prefill_too):
    expected = decode_logits(model, False, prefill_too)
    monkeypatch.setattr(attention_plan, "ALONE_FROM", alone_from)
    assert torch.allclose(decode_logits(model, shuffle, prefill_too), expected, rtol=1e-5, atol=1e-5)


def test_a_table_that_is_too_short_is_refused(model):
    kv = model.kv_cache(4, 16)
    with pytest.raises(ValueError, match=r"sequence 0 .* 2 KV blocks for 17 tokens"):
        forward(model, kv, [torch.tensor([0])], [0], [17], torch.zeros(17, dtype=torch.int64))


def test_blocks_of_others_are_never_read(model):
    """A short table is padded with its own first block: NaN in blocks that nobody was given does not reach an answer."""
    expected = decode_logits(model, False)
    original = model.kv_cache

    def poisoned(blocks, size):
        kv = original(blocks, size)
        for pool in kv.pools:
            pool.values[:, -4:] = torch.nan
        return kv

    model.kv_cache = poisoned
    try:
        assert torch.equal(decode_logits(model, False), expected)
    finally:
        model.kv_cache = original


def test_bfloat16_agrees_with_transformers_in_bfloat16(tiny_qwen3_moe):
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(tiny_qwen3_moe.path, dtype=torch.bfloat16).eval()
    model, tokens = model_of(tiny_qwen3_moe, torch.bfloat16), tiny_qwen3_moe.prompts[0].tokens
    kv = model.kv_cache(8, 16)
    table = torch.tensor(kv.allocator.allocate(4))
    ours = forward(model, kv, [table], [0], [len(tokens)], torch.tensor(tokens)).float()
    with torch.no_grad():
        theirs = reference(torch.tensor([tokens])).logits[0].float()
    exact = tiny_qwen3_moe.logits[0]
    # bfloat16 has 8 bits: both are away from float32 by the same order, and from each other no further.
    assert (ours - exact).norm() < 1.5 * (theirs - exact).norm()


def test_allocator_lends_each_block_once():
    allocator = BlockAllocator(10)
    first, second = allocator.allocate(4), allocator.allocate(6)
    assert sorted(first + second) == list(range(10)) and first == [0, 1, 2, 3]
    assert allocator.allocate(1) is None and allocator.available == 0 and allocator.used == 10
    allocator.release(first)
    assert allocator.available == 4
    with pytest.raises(ValueError, match="not lent"):
        allocator.release(first)


def test_cache_sizes(model):
    kv = model.kv_cache(8, 16)
    assert kv.nbytes == 3 * 2 * 2 * 8 * 16 * 16 * 4  # layers, keys and values, kv heads, blocks, tokens, head_dim, float32
    assert kv.token_bytes == 2 * 2 * 16 * 4
    assert [kv.blocks_for(n) for n in (1, 16, 17)] == [1, 1, 2]
