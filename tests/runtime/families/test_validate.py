"""`workbench validate`: sound models pass every tier, planted faults are named by the tier that must see them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from runtime.layers import attention  # noqa: E402
from runtime.layers.moe import Mixture  # noqa: E402
from runtime.layers.norm import RmsNorm  # noqa: E402
from runtime.local import load_local  # noqa: E402
from runtime.taps.capture import Capture  # noqa: E402
from runtime.validation.coverage import examine_coverage, unreached  # noqa: E402
from runtime.validation.long import examine_long  # noqa: E402
from runtime.validation.recall import NUMBER, examine_recall, text_ids  # noqa: E402
from runtime.validation.short import examine_short  # noqa: E402
from runtime.validation.sides import Side, compare_sides  # noqa: E402
from runtime.validation.single_step import against, examine_single_step  # noqa: E402
from runtime.validation.subject import Subject, open_subject  # noqa: E402
from runtime.validation.validate import Wanted, validate  # noqa: E402
from traces.errors import UsageError  # noqa: E402
from workbench.cli import main as entry  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny matrices: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def subject(path, float8=False, device="cpu"):
    return open_subject(path, torch.float32, device, float8, None, 0, 512)


def outcomes(checks) -> dict[str, str]:
    return {check.name: check.outcome for check in checks}


def failed(checks) -> list:
    return [check for check in checks if check.outcome == "fail"]


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "deepseek_v3", "kimi_linear"])
def test_a_sound_model_passes_every_tier_it_has(families, name):
    found = validate(families[name].path, Wanted(reference="transformers", room=512))
    assert found.status == "pass", [tier.detail for tier in found.tiers]
    assert [tier.status for tier in found.tiers] == ["pass"] * 4 + ["skipped"]
    named = [check.name for check in found.tiers[3].checks]
    assert ("sliding window 9: token by token" in named) == (name == "gpt_oss")
    assert ("original context of yarn 64: steps of 65" in named) == (name == "deepseek_v3")
    assert any("delta attention" in check for check in named) == (name == "kimi_linear")


def test_shipped_model_passes_with_its_pictures():
    from runtime.shipped import shapes_moe

    found = validate(shapes_moe(), Wanted(reference="transformers", room=64))
    assert [tier.status for tier in found.tiers] == ["pass"] * 5, [tier.detail for tier in found.tiers]


def test_a_model_that_recalls_nothing_is_said_to_be_so():
    """The shipped one was trained on pictures and arithmetic; the tiny ones have no tokenizer."""
    from runtime.shipped import shapes_moe

    shipped = subject(shapes_moe())
    for length in (0, 300):
        ids = text_ids(shipped.tokenizer, length)
        text = shipped.words(ids)
        assert text.count(NUMBER) == 1 and text.index(NUMBER) < 60 and text.endswith("is") and len(ids) < 512
    found = examine_recall(shipped)
    assert (found.outcome, "does not repeat a number over" in found.detail) == ("note", True)


def test_damaged_weights_stop_the_rest(families, tmp_path):
    """A right-sized file whose tail is zero: nothing but the values can show it."""
    folder = tmp_path / "damaged"
    shutil.copytree(families["mixtral"].path, folder)
    file = max(folder.glob("*.safetensors"), key=lambda f: f.stat().st_size)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    found = validate(folder, Wanted(record=tmp_path / "taps"))
    assert [tier.status for tier in found.tiers] == ["fail"] + ["skipped"] * 4
    assert "zeros" in found.tiers[0].detail and "not released: weights failed" in found.tiers[1].detail
    assert not (tmp_path / "taps").exists() and "no taps" in found.notes[0]


def test_a_prompt_cut_without_its_past_fails_from_the_cut_on(families, monkeypatch):
    """Chunks behind the first attend to themselves alone."""
    whole = attention._prefill

    def forgetful(qkv, span, spec, pool, sinks):
        return whole(qkv, replace(span, pages=None, mask=None, context=span.stop - span.start), spec, pool, sinks)

    monkeypatch.setattr(attention, "_prefill", forgetful)
    bad = failed(examine_long(subject(families["glm4_moe"].path)))
    first = next(check for check in bad if check.name == "block of the cache 16: steps of 17")
    assert "layers.0.attention diverges" in first.detail and "from position 17 on" in first.detail


def test_a_window_off_by_one_in_decode_fails(families, monkeypatch):
    """Single tokens see one cached token less than a chunk does."""
    from runtime.layers.attention_plan import DecodeGroup

    true = DecodeGroup.within
    monkeypatch.setattr(DecodeGroup, "within", lambda self, window, dtype, device: true(self, window - 1, dtype, device))
    bad = failed(examine_long(subject(families["gpt_oss"].path)))
    assert any(check.name == "sliding window 9: token by token" for check in bad)


def test_wrong_frequencies_fail_against_float64(families):
    found = subject(families["mixtral"].path)
    found.model.rope.inverse *= 1.01
    assert [check.name for check in failed(examine_long(found))] == ["rope"]


def test_another_epsilon_fails_against_the_config_and_is_noted_against_a_reference(families):
    """No row of the prompt is small enough to show it."""
    found, sound = subject(families["mixtral"].path), subject(families["mixtral"].path)
    layer = found.model.weights.layers[2]
    found.model.weights.layers[2] = replace(layer, attention_norm=RmsNorm(layer.attention_norm.weight, 1.5 * found.model.arch.norm_eps))
    bad = failed(examine_single_step(found))
    assert [check.name for check in bad] == ["norms"] and bad[0].detail.startswith("layers.2.attention_norm leaves")
    check = against(sound.capture(), found.capture())
    assert check.outcome == "note" and "1 norms, layers.2.attention_norm first" in check.detail


def test_experts_that_are_never_chosen_are_named_and_computed_by_force(families):
    found = subject(families["deepseek_v3"].path)
    found.model.weights.layers[1].experts.select[5] = -1e9
    checks = examine_coverage(found)
    told = next(check for check in checks if check.name == "expert coverage")
    assert told.outcome == "note" and told.detail.endswith("layer 1: 4, 5, 7") and outcomes(checks)["experts by force"] == "pass"
    found.model.weights.layers[1].experts.bank.down[5] *= 1000
    assert "layer 1 expert 5 answers" in failed(examine_coverage(found))[0].detail
    found.model.weights.layers[1].experts.bank.down[5] = float("nan")
    assert "layer 1 expert 5 answers NaN or infinity" in failed(examine_coverage(found))[0].detail


def test_dropped_rows_are_counted(families, monkeypatch):
    true = Mixture._compute

    def dropping(self, rows, hidden, counts, per_slot, step, times):
        out = true(self, rows, hidden, counts, per_slot, step, times)
        step.rows_received[-1] -= 3 if self.layer == 2 else 0
        return out

    monkeypatch.setattr(Mixture, "_compute", dropping)
    bad = failed(examine_single_step(subject(families["mixtral"].path)))
    assert [check.name for check in bad] == ["routed rows"] and "layer 2 computed 253 rows of 256" in bad[0].detail


def test_answers_that_differ_fail_though_no_tap_diverges(families, monkeypatch):
    """Only a token that a near-tie has sent elsewhere answers otherwise, and it answers far off."""
    taps = {"layers.0.router.experts": torch.zeros(8, 2, dtype=torch.int64), "logits": torch.eye(8)}
    other = {name: tap.clone() for name, tap in taps.items()}
    other["layers.0.router.experts"][3] = 1
    other["logits"][3] = torch.eye(8)[4] * 20
    reference, observed = Capture(list(range(8)), taps, {}), Capture(list(range(8)), other, {})
    check = against(reference, observed)
    assert check.outcome == "fail" and "no tap diverges" in check.detail and check.observed > check.limit
    found = subject(families["mixtral"].path)
    monkeypatch.setattr(Subject, "logits", lambda self, ids, steps=(), scattered=False: taps["logits"] + len(steps))
    recorded = iter((reference, observed))
    monkeypatch.setattr("runtime.validation.subject.record", lambda *_, **__: next(recorded))
    check = found.equal_in_steps("cut", list(range(8)), [4])
    assert check.outcome == "fail" and "no tap diverges" in check.detail


def test_logits_far_off_fail_though_the_answer_is_the_references(families, monkeypatch):
    """Twice the reference's logits draw the same tokens."""
    found = subject(families["mixtral"].path)
    found.outside = "transformers"
    true = Subject.logits
    monkeypatch.setattr("runtime.validation.short.outside_logits", lambda _, ids: true(found, ids))
    assert {check.outcome for check in examine_short(found)} == {"pass"}
    monkeypatch.setattr("runtime.validation.short.outside_logits", lambda _, ids: 2 * true(found, ids))
    bad = failed(examine_short(found))
    assert [check.name for check in bad] == [f"reference answer {n}" for n in range(4)]
    assert "logits are 5.0e-01 from the reference's" in bad[0].detail


def test_overflow_is_named_by_its_first_tap(families):
    found = subject(families["mixtral"].path)
    found.model.weights.layers[1].attention.out[:] = float("inf")
    bad = failed(examine_single_step(found))
    assert "layers.1.attention has NaN or infinity" in bad[0].detail


def test_recorded_taps_judge_another_checkpoint(families, tmp_path):
    """The same weights with another scaling factor in the config: only the router's weights tell, by exactly its ratio."""
    file, other = tmp_path / "taps.safetensors", tmp_path / "other"
    source = families["deepseek_v3"].path
    assert validate(source, Wanted(record=file, last="single-step")).status == "pass"
    assert validate(source, Wanted(against=file, last="single-step")).status == "pass"
    shutil.copytree(source, other)
    config = json.loads((other / "config.json").read_text())
    factor = config["routed_scaling_factor"]
    (other / "config.json").write_text(json.dumps(config | {"routed_scaling_factor": 2 * factor}))
    found = validate(other, Wanted(against=file))
    assert [tier.status for tier in found.tiers] == ["pass", "fail", "skipped", "skipped", "skipped"]
    assert "layers.1.router.weights diverges" in found.tiers[1].detail and "gain 2," in found.tiers[1].detail
    by_folder = validate(other, Wanted(reference=str(source), last="single-step"))
    assert by_folder.tiers[1].detail == found.tiers[1].detail


def test_recorded_taps_reach_every_expert(families, tmp_path, monkeypatch):
    """Random ids are added until they do; ids that were asked for stay as they are, and what they leave out is said."""
    monkeypatch.setattr("runtime.validation.subject.PROBE_TOKENS", 4)  # too few for 8 experts
    file, path = tmp_path / "taps", families["mixtral"].path
    whole = validate(path, Wanted(record=file, last="single-step"))
    model, taken = load_local(path), Capture.load(file)
    assert unreached(model, taken) == {} and len(whole.notes) == 1 and len(taken.ids) > 4
    assert all(set(taken.taps[f"layers.{i}.router.experts"].flatten().tolist()) == set(range(8)) for i in range(3))
    few = validate(path, Wanted(record=file, last="single-step", ids=[5]))
    assert Capture.load(file).ids == [5] and "the tokens reach 6 of 24 experts" in few.notes[1]


def test_sides_alike_and_apart(families):
    path = str(families["mixtral"].path)
    same = compare_sides(Side.of("float32", path, "float32"), Side.of(path, None, "float32"), "cpu", (), None, 0)
    assert (same.kl, same.top1, same.changed, same.visible, same.first_tap) == (0.0, 1.0, [], False, None)
    coarse = compare_sides(Side.of("float32", path, "float32"), Side.of("kv-fp8", path, "float32"), "cpu", (), None, 0)
    assert 0 < coarse.kl < 1 and "fp8" in coarse.b
    other = compare_sides(Side.of(path, None, "float32"), Side.of(str(families["glm4_moe"].path), None, "float32"), "cpu", (), None, 0)
    assert other.visible and other.top1 < 0.5 and len(other.changed) == other.answers
    with pytest.raises(UsageError, match="'int3' is neither"):
        Side.of("int3", path, "float32")


def test_prompts_that_cannot_be_read_are_refused(families):
    from runtime.shipped import shapes_moe

    for path, prompt, why in ((str(shapes_moe()), "", "has no token"), (str(families["mixtral"].path), "Once", "has no tokenizer")):
        side = Side.of(path, None, "float32")
        with pytest.raises(UsageError, match=why):
            compare_sides(side, side, "cpu", (prompt,), None, 0)


def test_the_command_knows_the_tiers_without_importing_them():
    from runtime.validation.document import TIERS
    from workbench.cli.validate import TIERS as OFFERED

    assert OFFERED == TIERS


def test_a_device_that_cannot_be_used_is_refused_before_anything_is_read(families, tmp_path):
    for device in ("abacus", "meta", "cuda:99"):
        with pytest.raises(UsageError, match=f"cannot use the device '{device}'"):
            subject(families["mixtral"].path, device=device)
        assert entry.run(["validate", str(tmp_path), "--device", device]) == 2
        assert entry.run(["validate", "--compare", *[str(families["mixtral"].path)] * 2, "--device", device]) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("M --prompt a", "--prompt needs --compare"),
        ("M --tier weights --reference transformers", "--reference does not go with --tier weights"),
        ("M --tier weights --against no", "--against does not go with --tier weights"),
        ("--compare M M --reference M", "--reference does not go with --compare"),
        ("--compare M M --tier short", "--tier does not go with --compare"),
        ("--compare M M --most-tokens 9", "--most-tokens does not go with --compare"),
        ("--compare M M --kv-dtype fp8", "A,kv-fp8"),
    ],
)
def test_options_that_do_not_apply_are_refused(families, capsys, words, told):
    path = str(families["mixtral"].path)
    assert entry.run(["validate", *[path if word == "M" else word for word in words.split()]]) == 2
    assert told in capsys.readouterr().err


def test_a_wrong_file_of_taps_is_refused_before_the_weights_are_read(tmp_path):
    with pytest.raises(UsageError, match="taps"):
        validate(tmp_path / "no model", Wanted(against=tmp_path / "no taps"))


def test_command_answers_with_a_schema_and_a_code(families, capsys, tmp_path):
    path = str(families["mixtral"].path)
    assert entry.run(["validate", path, "--tier", "single-step", "--json", "--ids", "3,4,5", "--record", str(tmp_path / "t")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "workbench.validate.v1" and [tier["name"] for tier in answer["tiers"]] == ["weights", "single-step"]
    assert Path(tmp_path / "t").exists()
    assert entry.run(["validate", path, "--compare", path, str(families["glm4_moe"].path)]) == 3
    assert "top-1 agreement" in capsys.readouterr().out
    for argv in ([], [path, "--ids", "3,x"], [path, "--ids", "3,999", "--tier", "single-step"], [path, "--against", str(tmp_path / "no")]):
        assert entry.run(["validate", *argv]) == 2
