"""A model answers alike in training and in service: what only training does is absent here, and said to be."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from runtime.local import LocalSequence, load_local  # noqa: E402
from runtime.shipped import shapes_moe  # noqa: E402
from runtime.taps.compare import compare  # noqa: E402
from runtime.taps.reference import record_reference, transformers_model  # noqa: E402
from runtime.taps.tapped_model import TappedModel, record  # noqa: E402
from runtime.validation.single_step import examine_single_step  # noqa: E402
from runtime.validation.subject import open_subject  # noqa: E402

IDS = np.random.default_rng(3).integers(3, 290, 40).tolist()


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([IDS])).logits[0]


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "gpt_oss", "kimi_linear", "glm4_moe", "minimax_m2", "shipped"])
def test_training_and_service_compute_the_same(families, name):
    """Transformers in train mode, in eval mode, and we: the same logits and the same taps."""
    path = shapes_moe() if name == "shipped" else families[name].path  # a qwen3_vl_moe
    model = transformers_model(path)
    serving = logits(model)
    trained = record_reference(model.train(), IDS)
    assert model.training and float((trained.taps["logits"] - serving).norm() / serving.norm()) < 1e-6
    found = compare(trained, record(load_local(path, kind=TappedModel), IDS))
    assert found.first is None and max(tap.relative for tap in found.taps) < 1e-4


def test_jitter_of_training_is_bypassed_and_named(families, tmp_path):
    """Training multiplies what the experts' router sees by noise; service does not, as transformers' does not."""
    folder = tmp_path / "model"
    shutil.copytree(families["mixtral"].path, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"router_jitter_noise": 0.3}))
    model = transformers_model(folder)
    serving, training = logits(model), logits(model.train())
    ours = LocalSequence(load_local(folder), len(IDS)).feed(IDS)
    assert float((training - serving).norm() / serving.norm()) > 0.01
    assert float((ours - serving).norm() / serving.norm()) < 1e-4
    checks = examine_single_step(open_subject(folder, torch.float32, "cpu", False, IDS, 0, 64))
    told = next(check for check in checks if check.name == "training settings")
    assert told.outcome == "note" and "router_jitter_noise 0.3" in told.detail
