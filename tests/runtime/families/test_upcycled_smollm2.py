"""A real model: SmolLM2-135M, upcycled to a mixture, answers in sentences; its logits are the dense model's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from playbooks.drills import upcycled as smollm2  # noqa: E402
from probes.checkpoint import Checkpoint  # noqa: E402
from runtime.arch import read_arch  # noqa: E402
from runtime.batch import ForwardBatch, StepContext  # noqa: E402
from runtime.mesh import Mesh  # noqa: E402
from runtime.model import MoeModel  # noqa: E402

MISSING = smollm2.unavailable()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


@pytest.fixture(scope="module")
def dense():
    return smollm2.packaged()


@pytest.fixture(scope="module")
def upcycled(dense, tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2")
    smollm2.upcycle(dense[0], folder, 4, torch.float32, 0)
    checkpoint = Checkpoint.open(folder)
    return MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.alone())


def forward(model: MoeModel, kv, table, tokens: list[int], cached: int):
    count = len(tokens)
    positions = torch.arange(cached, cached + count).expand(3, -1)
    starts = torch.tensor([0, count])
    batch = ForwardBatch(torch.tensor(tokens), positions, starts, torch.tensor([cached]), [table], torch.arange(count))
    return model.forward(batch, kv, StepContext(1))


def test_logits_are_the_dense_models_and_the_answer_is_a_sentence(dense, upcycled):
    model, tokenizer = dense
    question = [{"role": "user", "content": "What is the capital of France?"}]
    tokens = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    kv = upcycled.kv_cache(16, 16)
    table = torch.tensor(kv.allocator.allocate(16))
    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits[0]
    ours = forward(upcycled, kv, table, tokens, 0)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-4
    answer = [int(ours[-1].argmax())]
    while answer[-1] != tokenizer.eos_token_id and len(answer) < 24:
        answer.append(int(forward(upcycled, kv, table, answer[-1:], len(tokens) + len(answer) - 1)[-1].argmax()))
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."


def test_a_number_is_recalled_over_a_long_text_and_lost_with_the_past(dense, tmp_path, monkeypatch):
    """In chunks as in one pass; where chunks forget what was before them, one pass shows that the model could."""
    from runtime.forward_variable import FORWARD_STYLE
    from runtime.validation.recall import examine_recall
    from runtime.validation.subject import open_subject

    smollm2.upcycle(dense[0], tmp_path / "model", 2, torch.float32, 0)
    dense[1].save_pretrained(tmp_path / "model")
    sound = examine_recall(open_subject(tmp_path / "model", torch.float32, "cpu", False, None, 0, 640))
    assert sound.outcome == "pass" and sound.observed > 512, sound.detail
    monkeypatch.setenv(FORWARD_STYLE, "forget-past")
    bad = examine_recall(open_subject(tmp_path / "model", torch.float32, "cpu", False, None, 0, 640))
    assert bad.outcome == "fail" and "right in one pass" in bad.detail, bad.detail
