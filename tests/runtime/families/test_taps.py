"""Taps of our forward pass equal transformers' activations, and a planted fault is named by its tap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from runtime.layers.norm import RmsNorm  # noqa: E402
from runtime.local import load_local  # noqa: E402
from runtime.model import MoeModel  # noqa: E402
from runtime.taps.capture import Capture, in_order  # noqa: E402
from runtime.taps.compare import answers, compare  # noqa: E402
from runtime.taps.faint import FAINT, epsilon_of, faint_gain, gain_of  # noqa: E402
from runtime.taps.reference import record_reference, transformers_model  # noqa: E402
from runtime.taps.tapped_model import TappedModel, record  # noqa: E402
from traces.errors import UsageError  # noqa: E402

IDS = np.random.default_rng(1).integers(3, 290, 40).tolist()
COMMON = ("embed", "layers.1.attention_norm", "layers.1.attention", "layers.1.ffn_norm", "layers.1.router.experts", "layers.1.routed",
          "layers.1.ffn", "layers.1.output", "norm", "logits")  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny matrices: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def mixtral(families):
    return load_local(families["mixtral"].path, kind=TappedModel)


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "gpt_oss", "kimi_linear", "glm4_moe", "minimax_m2"])
def test_every_tap_equals_transformers(families, name):
    path = families[name].path
    ours = record(load_local(path, kind=TappedModel), IDS)
    found = compare(record_reference(transformers_model(path), IDS), ours)
    assert {tap.name for tap in found.taps} >= set(COMMON)
    assert found.first is None and max(tap.relative for tap in found.taps) < 1e-4 and found.top1 == 1.0 and not found.visible
    norms = [f"layers.{i}.{part}.faint" for i in range(3) for part in ("attention_norm", "ffn_norm")]
    assert [tap.name for tap in found.faint] == [*norms, "norm.faint"] and max(tap.relative for tap in found.faint) < 1e-5


@pytest.mark.parametrize("name", ["kimi_k3", "kimi_linear", "gpt_oss"])
def test_chunks_tap_alike(families, name):
    model = load_local(families[name].path, kind=TappedModel)
    found = compare(record(model, IDS), record(model, IDS, (7, 9)))
    assert found.first is None and not found.missing


def test_recording_changes_no_logit(families, mixtral):
    taps = record(mixtral, IDS).taps
    plain = load_local(families["mixtral"].path)
    assert type(plain) is MoeModel
    from runtime.local import LocalSequence

    assert torch.equal(LocalSequence(plain, len(IDS)).feed(IDS), taps["logits"])


@pytest.mark.parametrize(
    ("fault", "first", "gain"),
    [
        (lambda m: m.weights.layers[1].experts.bank.down.mul_(3), "layers.1.routed", 3.0),
        (lambda m: m.weights.layers[2].attention.out.mul_(-1), "layers.2.attention", -1.0),
        (lambda m: m.weights.layers[1].experts.router.neg_(), "layers.1.router.logits", -1.0),
        (lambda m: m.weights.head.mul_(2), "logits", 2.0),
    ],
)  # fmt: skip
def test_the_first_diverging_tap_is_where_the_fault_is(families, mixtral, fault, first, gain):
    model = load_local(families["mixtral"].path, kind=TappedModel)
    with torch.no_grad():
        fault(model)
    found = compare(record(mixtral, IDS), record(model, IDS))
    assert found.first is not None and found.first.name == first and found.first.gain == pytest.approx(gain, abs=1e-4)
    assert found.first.hit == 1.0 and found.visible


def test_one_scaled_expert_hits_exactly_the_tokens_routed_to_it(families, mixtral):
    model = load_local(families["mixtral"].path, kind=TappedModel)
    reference = record(mixtral, IDS)
    routed_there = (reference.taps["layers.0.router.experts"] == 5).any(1).nonzero().flatten()
    model.weights.layers[0].experts.bank.down[5] *= 4
    first = compare(reference, record(model, IDS)).first
    assert first is not None and first.name == "layers.0.routed"
    assert first.hit == len(routed_there) / len(IDS) < 1 and (first.first_hit, first.last_hit) == (routed_there[0], routed_there[-1])


def test_another_epsilon_shows_in_a_faint_row_alone(families, mixtral):
    """A tenth more of it changes no tap of this prompt by 1e-3, and transformers' norm says as well what it leaves of a faint row."""
    from transformers.models.mixtral.modeling_mixtral import MixtralRMSNorm

    model = load_local(families["mixtral"].path, kind=TappedModel)
    layer = model.weights.layers[1]
    model.weights.layers[1] = replace(layer, ffn_norm=RmsNorm(layer.ffn_norm.weight, 1.1 * model.arch.norm_eps))
    found = compare(record(mixtral, IDS), record(model, IDS))
    assert found.first is None and [tap.name for tap in found.faint if tap.diverges] == ["layers.1.ffn_norm.faint"]
    for epsilon in (1e-6, 1e-5, 1e-3):
        gain = float(faint_gain(MixtralRMSNorm(64, epsilon), torch.zeros(1, 64))[0, 0].detach())
        assert gain == pytest.approx(gain_of(epsilon), rel=1e-5) and epsilon_of(gain) == pytest.approx(epsilon, rel=1e-3)
    assert epsilon_of(gain_of(0.0)) == 0.0 and epsilon_of(FAINT) == float("inf")


def test_another_rope_base_shows_in_the_key_and_not_before_it(families, mixtral):
    from runtime.layers.rope import Rope

    model = load_local(families["mixtral"].path, kind=TappedModel)
    model.rope = Rope(replace(model.arch.rope, theta=1e3), model.device)
    found = compare(record(mixtral, IDS), record(model, IDS))
    assert found.first is not None and found.first.name == "layers.0.key" and found.first.first_hit == 1
    assert next(tap for tap in found.taps if tap.name == "layers.0.key_before_rope").relative == 0


def test_a_file_comes_back_as_it_was_and_others_are_refused(mixtral, tmp_path):
    taken = record(mixtral, IDS)
    taken.save(tmp_path / "a.safetensors")
    again = Capture.load(tmp_path / "a.safetensors")
    assert again.ids == IDS and again.facts == taken.facts
    assert again.names() == taken.names() and all(torch.equal(again.taps[name], taken.taps[name]) for name in taken.taps)
    (tmp_path / "b").write_bytes(b"\xff" * 64)
    with pytest.raises(UsageError, match="as taps"):
        Capture.load(tmp_path / "b")
    with pytest.raises(UsageError, match="different token ids, from 39 on"):
        compare(taken, record(mixtral, [*IDS[:-1], 3]))
    with pytest.raises(UsageError, match="outside the vocabulary of 320"):
        record(mixtral, [5, 320])


def test_order_of_execution():
    names = ["logits", "layers.10.attention", "layers.2.router.logits", "norm", "embed", "layers.2.attention"]
    assert in_order(names) == ["embed", "layers.2.attention", "layers.2.router.logits", "layers.10.attention", "norm", "logits"]


def test_kl_by_hand_and_nan_is_seen():
    """Two tokens: (1/2, 1/2) against (3/4, 1/4), and the same again: KL = (ln(1/2 / 3/4) + ln(1/2 / 1/4)) / 2, halved over the two."""
    reference = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    observed = torch.tensor([[0.75, 0.25], [0.25, 0.75]]).log()
    kl, _, top1, changed = answers(reference, observed)
    assert kl == pytest.approx(0.5 * (np.log(0.5 / 0.75) + np.log(0.5 / 0.25)) / 2) and top1 == 1.0 and not changed
    kl, _, top1, changed = answers(reference, torch.tensor([[0.5, float("nan")], [0.25, 0.75]]).log())
    assert kl == float("inf") and top1 == 0.5 and changed == [0]


def test_a_near_tie_is_left_out_and_many_flips_are_another_router(mixtral):
    reference = record(mixtral, IDS)
    one = Capture(IDS, {name: tap.clone() for name, tap in reference.taps.items()}, reference.facts)
    one.taps["layers.1.router.experts"][7] = (
        torch.tensor([0, 1]) if reference.taps["layers.1.router.experts"][7, 0] else torch.tensor([2, 3])
    )
    one.taps["layers.1.routed"][7] *= -1
    found = compare(reference, one)
    assert found.first is None and found.flipped == [7]
    for position in (3, 12, 20):
        one.taps["layers.1.router.experts"][position] = (reference.taps["layers.1.router.experts"][position] + 1) % 8
    found = compare(reference, one)
    assert found.first is not None and found.first.name == "layers.1.router.experts" and found.first.hit == pytest.approx(4 / 40)


def test_flips_of_all_layers_are_added_up():
    """One other token in each layer: within what a layer may, and in the end nearly none is left to judge."""
    ids = list(range(10))
    taps = {f"layers.{layer}.router.experts": torch.zeros(10, 2, dtype=torch.int64) for layer in range(9)}
    observed = {name: tap.clone() for name, tap in taps.items()}
    for layer in range(9):
        observed[f"layers.{layer}.router.experts"][layer] = 3
    found = compare(Capture(ids, taps, {}), Capture(ids, observed, {}))
    assert found.first is not None and found.first.name == "layers.1.router.experts" and found.flipped == [0]
    one = {"layers.0.router.experts": torch.zeros(1, 2, dtype=torch.int64)}
    assert compare(Capture([1], one, {}), Capture([1], {name: tap + 1 for name, tap in one.items()}, {})).first is not None
