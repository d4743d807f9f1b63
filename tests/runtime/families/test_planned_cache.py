"""What `plan` says a rank caches is what the runtime takes, for every kind of attention."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from probes.checkpoint import Checkpoint  # noqa: E402
from runtime.arch import read_arch  # noqa: E402
from runtime.budget.comparison import Served, cached_bytes  # noqa: E402
from runtime.budget.layout import Layout, stages  # noqa: E402
from runtime.inventory.opening import open_inventory  # noqa: E402
from runtime.kv import KVCache  # noqa: E402

BLOCKS, SIZE, SEQUENCES = 6, 16, 3


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "gpt_oss", "kimi_linear", "kimi_k3"])
def test_planned_bytes_are_taken(families, name):
    """Windows free nothing here; latents are kept once; states belong to sequences."""
    path = families[name].path
    arch, inventory = read_arch(Checkpoint.open(path).config), open_inventory(str(path))
    attentions = [layer.attention for layer in arch.layers]
    kv = KVCache.create(attentions, BLOCKS, SIZE, SEQUENCES, torch.float32, torch.device("cpu"))
    served = Served(Layout(), 4, SIZE, 4, SEQUENCES)
    planned = cached_bytes(inventory, served, stages(inventory.layers, 1)[0], BLOCKS * SIZE)
    assert planned == kv.nbytes
