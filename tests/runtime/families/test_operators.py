"""The operators seen on shapes alone are those that a real step dispatches, and a device's kernels, composites and gaps are told apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from runtime.local import LocalSequence, load_local  # noqa: E402
from runtime.operators.execute import Executor, apart, operands  # noqa: E402
from runtime.operators.inventory import Asked, operators  # noqa: E402
from runtime.operators.kernels import key_of  # noqa: E402
from runtime.operators.recording import Call, Shape  # noqa: E402
from runtime.shipped import shapes_moe  # noqa: E402
from traces.errors import CheckpointError, UsageError  # noqa: E402
from workbench.cli import main as entry  # noqa: E402

REPO = Path(__file__).parents[3]
MODELS = next((p / "shared/models" for p in Path(__file__).parents if (p / "shared/models").is_dir()), Path("shared/models"))
K3 = MODELS / "kimi_k3.config.json"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def of(path, **asked) -> dict:
    return {op.name: op for op in operators(path, Asked(**asked)).operators}


def total(op, phase: str) -> int:
    return sum(op.calls.get(phase, {}).values())


@pytest.mark.parametrize("name", ["mixtral", "kimi_linear", "deepseek_v3"])
def test_the_profiler_sees_the_same_operators_in_a_real_step(families, name):
    """Names, and for those that no value decides, counts."""
    path = families[name].path
    model = load_local(path)
    sequence = LocalSequence(model, 64)
    sequence.feed(list(range(3, 35)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        sequence.feed(list(range(40, 72)))
    real = {event.key: event.count for event in profile.key_averages()}
    seen = of(path)
    bases: dict[str, int] = {}
    for op in seen.values():
        base = ".".join(op.name.split(".")[:1])
        bases[base] = bases.get(base, 0) + total(op, "prefill")
    assert {base for base, count in bases.items() if count} <= set(real)
    for base in ("aten::topk", "aten::bincount", "aten::index_copy_", "aten::hypot", "aten::addmm", "aten::cumsum", "aten::embedding",
                 "aten::scaled_dot_product_attention", "aten::linalg_solve_triangular", "aten::tril"):  # fmt: skip
        assert bases.get(base, 0) == real.get(base, 0), base


def test_decode_counts_layers_by_kind(families):
    document = operators(families["kimi_linear"].path, Asked(sequences=2))
    assert {kind.kind: kind.layers for kind in document.kinds} == {
        "delta attention + dense": [0], "latent attention + mixture": [1], "delta attention + mixture": [2],
    }  # fmt: skip
    topk = next(op for op in document.operators if op.name == "aten::topk")
    assert topk.calls["decode"] == {"latent attention + mixture": 1, "delta attention + mixture": 1}
    assert not document.gaps and all(op.status in ("kernel", "composite") for op in document.operators)


def test_every_operator_runs_right_on_the_cpu():
    found = of(shapes_moe(), run=True)
    outcomes = {name: {one.outcome for one in op.measured} for name, op in found.items()}
    assert {name for name, seen in outcomes.items() if "fail" in seen} == set()
    assert found["aten::mm"].measured[0].error < 1e-6 and found["aten::mm"].measured[0].reference == "cpu float64"
    assert {name for name, seen in outcomes.items() if "skipped" in seen} <= {"aten::empty_like", "aten::new_empty", "aten::empty"}


def test_published_k3_from_its_config_alone():
    if not K3.exists():
        pytest.skip(f"the published config is not here: {K3}")
    document = operators(K3, Asked(device="PrivateUse1"))
    text = json.loads(K3.read_text())["text_config"]
    layers = {kind.kind: len(kind.layers) for kind in document.kinds}
    assert sum(layers.values()) == text["num_hidden_layers"]
    assert sum(n for kind, n in layers.items() if kind.startswith("delta")) == len(text["linear_attn_config"]["kda_layers"])
    grouped = next(op for op in document.operators if op.name == "aten::_grouped_mm")
    assert total(grouped, "prefill") == 2 * (text["num_hidden_layers"] - text["first_k_dense_replace"])
    assert f"[{text['num_experts']}, {text['routed_expert_hidden_size']}, {2 * text['moe_intermediate_size']}]" in grouped.shapes["prefill"]
    assert {op.status for op in document.operators} == {"unknown"}  # nobody has registered a device


def test_kernels_variants_composites_fallbacks_and_gaps_of_a_registered_device():
    """A device that has just been registered, in a process of its own: registrations cannot be taken back."""
    code = """
import torch, json, sys
from runtime.operators.inventory import Asked, operators
from runtime.shipped import shapes_moe
library = torch.library.Library("aten", "IMPL")
def kernel(*args, **kwargs): raise AssertionError("is never called")
for name in ("empty.memory_format", "mm.out", "topk.values", "embedding", "_scaled_dot_product_fused_attention_overrideable"):
    library.impl(name, kernel, "PrivateUse1")
def told():
    d = operators(shapes_moe(), Asked(device="PrivateUse1"))
    return {op.name: [op.status, op.how, op.advice] for op in d.operators}, d.gaps
before = told()
rest = torch.library.Library("_", "IMPL")
rest.fallback(kernel, "PrivateUse1")
print(json.dumps([before, told()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, timeout=120, check=True)
    (status, gaps), (after, gaps_after) = json.loads(done.stdout.splitlines()[-1])
    assert status["aten::mm"][:2] == ["kernel", "PrivateUse1, through aten::mm.out"]
    assert status["aten::topk"][:2] == ["kernel", "PrivateUse1, through aten::topk.values"]
    assert status["aten::embedding"][:2] == ["kernel", "PrivateUse1"]
    assert status["aten::scaled_dot_product_attention"][0] == "kernel"
    assert status["aten::split.Tensor"][0] == "composite" and status["aten::index_select"][0] == "nothing"
    assert "aten::index_select" in gaps and "aten::mm" not in gaps
    assert "composite" in status["aten::bincount"][2] and "decomposition" in status["aten::silu"][2]
    assert after["aten::index_select"][0] == "fallback" and not gaps_after and after["aten::mm"] == status["aten::mm"]


def test_a_kernel_that_computes_wrongly_or_raises_fails():
    library = torch.library.Library("wbtest", "DEF")
    library.define("scale(Tensor x) -> Tensor")
    library.define("broken(Tensor x) -> Tensor")
    library.impl("scale", lambda x: x * (2.0 if x.dtype == torch.float64 else 2.1), "CPU")
    library.impl("broken", lambda x: x.to(torch.float64).view(3), "CPU")
    shape = Shape((4, 5), (5, 1), torch.float32)
    wrong = Executor("cpu").measure(Call(torch.ops.wbtest.scale.default, (shape,), {}), "kernel")
    assert wrong.outcome == "fail" and wrong.error == pytest.approx(0.05, rel=1e-4)
    assert Executor("cpu").measure(Call(torch.ops.wbtest.broken.default, (shape,), {}), "kernel").detail.startswith("RuntimeError")
    large = Shape((1 << 14, 1 << 14), (1 << 14, 1), torch.float32)
    assert Executor("cpu").measure(Call(torch.ops.aten.neg.default, (large,), {}), "kernel").outcome == "skipped"


def test_operands_keep_strides_and_index_what_is_there():
    call = Call(torch.ops.aten.index_select.default, (Shape((6, 4), (1, 6), torch.float32), 1, Shape((9,), (1,), torch.int64)), {})
    (values, dim, index), _ = operands(call)
    assert values.stride() == (1, 6) and dim == 1 and int(index.max()) == 3
    assert apart(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])) == pytest.approx(0.1)
    assert apart(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5
    assert apart(torch.tensor([1.0]), torch.tensor([float("nan")])) == float("inf")


def test_command_and_its_codes(capsys, tmp_path):
    assert entry.run(["operators", "shapes", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "workbench.operators.v1" and answer["gaps"] == []
    assert entry.run(["operators", "shapes", "--device", "PrivateUse1"]) == 5
    (tmp_path / "config.json").write_text("[]")
    assert entry.run(["operators", str(tmp_path)]) == 2
    (tmp_path / "large.json").write_bytes(b" " * ((1 << 24) + 1))
    for command in ("operators", "plan"):
        assert entry.run([command, str(tmp_path / "large.json")]) == 2
        assert "too large for a config.json" in capsys.readouterr().err
    for words in ("--tokens", "16385"), ("--sequences", "4097"):
        assert entry.run(["operators", "shapes", *words]) == 2
    with pytest.raises(UsageError, match="no device 'abacus'"):
        key_of("abacus")
    with pytest.raises(CheckpointError, match="not supported"):
        operators(_config(tmp_path, {"model_type": "gpt2"}), Asked())


def test_a_device_that_this_machine_cannot_use_fails_no_operator(capsys):
    """`meta` knows every operator and holds no value."""
    code = entry.run(["operators", "shapes", "--device", "meta", "--run", "--json"])
    answer = json.loads(capsys.readouterr().out)
    told = {(one["outcome"], one["detail"]) for op in answer["operators"] for one in op["measured"]}
    assert {outcome for outcome, _ in told} == {"skipped"} and any("cannot use the device: Cannot copy" in detail for _, detail in told)
    assert code == (3 if answer["gaps"] else 5)


def _config(folder: Path, config: dict) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder
